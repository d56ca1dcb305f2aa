"""Rows to Revisions, and Revisions to what a process serves.

A Revision holds the Document without literal keys: these stay in the rows, a Revision only notices that one changed, and
`load` adds them where the provider still has the base URL they were given for. Publishing takes place inside the
transaction that edited the rows and one at a time, so that Revision n + 1 always holds what Revision n held.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import msgspec
from django.db import connection, transaction
from django.utils import timezone
from django.utils.crypto import salted_hmac

from accounts.store import apply_callers, callers_from_rows
from gateway import config
from gateway.differences import differences
from gateway.models import Revision
from routing import key_files, store
from routing.core.catalog import Catalog
from routing.core.compile import compile_document
from routing.core.document import Document
from routing.core.errors import ConfigurationError, Problem
from routing.core.reading import below, read


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    number: int
    new: bool
    """False: the rows say what this Revision says already."""
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The rows are stored and not published; the last Revision goes on serving."""

    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    changes: tuple[str, ...]
    """Between the rows and callers before and after, one line each."""
    published: Published


@transaction.atomic
def publish(author: str, note: str = "") -> Published | Pending:
    """Stores a new Revision when the rows compile and say something else than the last one."""
    _one_at_a_time()
    try:
        document = store.document_from_rows()
        _check(document)
    except ConfigurationError as error:
        return Pending(problems=error.problems)
    said, digests = config.plain(document), _key_digests()
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    last = Revision.objects.order_by("-number").first()
    if last is not None and (last.document, last.key_digests) == (text, digests):
        return Published(number=last.number, new=False)
    before = json.loads(last.document) if last else {}
    changes = [*differences(before, said), *_key_changes(last.key_digests if last else {}, digests)]
    revision = Revision.objects.create(
        number=last.number + 1 if last else 1,
        document=text,
        sha256=sha256(text.encode()).hexdigest(),
        key_digests=digests,
        author=author,
        created=timezone.now(),
        note=note,
        diff="\n".join(changes),
    )
    return Published(number=revision.number, new=True, changes=tuple(changes))


def pending() -> tuple[Problem, ...]:
    """Why the rows as they stand cannot be published; empty when they can."""
    try:
        _check(store.document_from_rows())
    except ConfigurationError as error:
        return error.problems
    return ()


@transaction.atomic
def republish(number: int, author: str) -> Published | Pending:
    """Makes the rows say what Revision `number` says and publishes that. Pending: it no longer compiles, nothing changed.

    Raises Revision.DoesNotExist.
    """
    _one_at_a_time()
    try:
        document = _document(json.loads(Revision.objects.get(number=number).document))
        _check(document)
    except ConfigurationError as error:
        return Pending(problems=error.problems)
    store.apply_document(document)
    return publish(author, note=f"Revision {number} again")


def import_configuration(
    configuration: config.Configuration, *, author: str, note: str = "", dry_run: bool = False
) -> Imported:
    """Makes rows and callers say what the file says, in one transaction, and publishes one Revision.

    `dry_run`: does the same and takes it all back. Raises ConfigurationError when the result cannot be published; then
    nothing has changed.
    """
    with transaction.atomic():
        _one_at_a_time()
        before, keys_before = _everything(), _key_digests()
        store.apply_document(configuration.document)
        apply_callers(configuration.callers)
        changes = [*differences(before, _everything()), *_key_changes(keys_before, _key_digests())]
        outcome = publish(author, note)
        if isinstance(outcome, Pending):
            raise ConfigurationError(outcome.problems)
        if dry_run:
            transaction.set_rollback(True)
    return Imported(changes=tuple(changes), published=outcome)


def latest() -> int | None:
    """The newest Revision's number, by one look at the index. `None`: nothing has been published."""
    return Revision.objects.order_by("-number").values_list("number", flat=True).first()


def load(number: int) -> Catalog:
    """Raises Revision.DoesNotExist, and ConfigurationError for a Revision that this release does not take any more."""
    revision = Revision.objects.get(number=number)
    return load_catalog(revision)


def load_catalog(revision: Revision) -> Catalog:
    document = with_keys(_document(json.loads(revision.document)))
    return compile_document(document, revision=revision.number, created=int(revision.created.timestamp()))


def with_keys(document: Document) -> Document:
    """With the literal keys of the rows, each only for the origin that it was given for."""
    providers = dict(document.providers)
    for name, (base_url, key) in store.literal_keys().items():
        provider = providers.get(name)
        if (
            provider is not None
            and provider.api_key_env is None
            and provider.api_key_file is None
            and store.origin(provider.base_url) == store.origin(base_url)
        ):
            providers[name] = replace(provider, api_key=key)
    return replace(document, providers=providers)


def document_json(number: int) -> bytes:
    """What a process keeps on disk to start from while the database is away. Holds no literal keys.

    Raises Revision.DoesNotExist.
    """
    return Revision.objects.values_list("document", flat=True).get(number=number).encode()


def catalog_from_json(document: bytes) -> Catalog:
    """Takes what `document_json` gives; the Catalog has no number. Raises ValueError for anything else."""
    return compile_document(_document(msgspec.json.decode(document)))


def _check(document: Document) -> None:
    """Raises ConfigurationError when `document` must not be published."""
    compile_document(document)
    if found := tuple(key_files.problems(document)):
        raise ConfigurationError(found)


def _document(said: object) -> Document:
    document, problems = read(Document, said)
    if document is None:
        raise ConfigurationError(problems)
    return document


def _everything() -> dict[str, Any]:
    """All that a file can say, as the rows say it now; what no file could say is left out."""
    return {**config.plain(store.readable_document()), "callers": config.plain_callers(callers_from_rows())}


def _key_digests() -> dict[str, str]:
    return {
        name: salted_hmac("gateway.publish.literal-key", key, algorithm="sha256").hexdigest()
        for name, (_, key) in sorted(store.literal_keys().items())
    }


def _key_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"{'+' if name not in before else '-' if name not in after else '~'} {below(below('providers', name), 'api_key')}: ***"
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]


def _one_at_a_time() -> None:
    """Holds every other publication off until this transaction ends. SQLite's writers come one at a time anyway."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


_LOCK = 0x50494C4F544147
"""Any number that nothing else in the database locks by."""
