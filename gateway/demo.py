"""The demonstration: a configuration for an empty database, a user, a token, and where these two are kept."""

import os
import secrets
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction

from accounts import tokens
from accounts.core.secret import digest_of
from accounts.models import Caller, Token
from gateway import config, publish
from gateway.models import Revision
from routing.models import ModelGroup, Provider

CONFIGURATION = Path(__file__).with_name("demo.yaml")
FIRST_SIMULATOR_PORT = 9001
"""Of three in a row, as the file has them."""
FIRST_PROVIDER = "swift-chat"
"""At the first of these ports."""
USER = "admin"
CALLER = "demo"


class Kept(msgspec.Struct, kw_only=True):
    """What can be shown again; the database has only digests of it."""

    password: str | None = None
    """Of the user `admin`."""
    token: str | None = None


def prepare(folder: Path, *, first_simulator_port: int = FIRST_SIMULATOR_PORT) -> Kept:
    """Loads the demonstration into a database without configuration, makes the first user, and returns what is kept.

    Anything that is there already is left as it is. `folder`: the data directory.
    """
    path = folder / "demo.json"
    kept = _read(path)
    with transaction.atomic():
        before = (kept.password, kept.token)
        if not any(model.objects.exists() for model in (Provider, ModelGroup, Caller, Revision)):
            text = CONFIGURATION.read_text()
            for number in range(3):
                text = text.replace(f":{FIRST_SIMULATOR_PORT + number}/", f":{first_simulator_port + number}/")
            publish.import_configuration(config.load(text.encode()), author="demo", note="The demonstration")
            _, kept.token = tokens.issue(Caller.objects.get(name=CALLER), author="demo")
        users = get_user_model().objects
        if not users.exists():
            kept.password = secrets.token_urlsafe(15)
            users.create_superuser(username=USER, password=kept.password)
        if before != (kept.password, kept.token):
            _write(path, kept)
    return kept


def usable(kept: Kept) -> Kept:
    """What of it still opens something: passwords are changed, tokens revoked."""
    user = get_user_model().objects.filter(username=USER, is_active=True).first()
    password = kept.password if kept.password and user is not None and user.check_password(kept.password) else None
    token = kept.token
    if token is not None:
        digest = digest_of(token.encode(), settings.TOKEN_PEPPER)
        if not Token.objects.filter(digest=digest, revoked_at=None, caller__active=True).exists():
            token = None
    return Kept(password=password, token=token)


def simulator_port() -> int | None:
    """The first of the ports at which the stored demonstration asks its simulators; `None`: it is not there any more."""
    first = Provider.objects.filter(name=FIRST_PROVIDER).first()
    where = urlsplit(first.base_url) if first is not None else None
    return where.port if where is not None and where.hostname == "127.0.0.1" else None


def _read(path: Path) -> Kept:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except (FileNotFoundError, msgspec.DecodeError):
        return Kept()


def _write(path: Path, kept: Kept) -> None:
    own = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(kept) + b"\n")
    own.replace(path)
