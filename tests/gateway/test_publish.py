"""Publishing rows as Revisions, following what is wrong with them, and going back."""

import threading
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connections, transaction
from django.test import Client
from django.urls import reverse

from accounts.core.document import CallerEntry
from accounts.store import callers_from_rows
from gateway import publish
from gateway.config import Configuration, dump, load
from gateway.models import Revision
from gateway.publish import Pending, Published
from routing.core import document
from routing.core.errors import ConfigurationError
from routing.models import ModelGroup, Provider, ProviderModel
from routing.store import apply_document, document_from_rows
from tests.support.documents import declared_group, declared_provider, declared_target, some_document

FRAGILE = some_document(
    declared_group(
        policy=document.DynamicScore(hard_filters=document.HardFilters(require_reasoning_support_when_requested=True))
    ),
    providers={
        "house": declared_provider({"small": document.Model(model="s", reasoning=document.Reasoning(supported=True))})
    },
)
"""Taking the model's reasoning away breaks the group, which a page of the model does not show."""

BROKEN = "models.chat.routing_policy.dynamic_score.hard_filters.require_reasoning_support_when_requested"


def some_configuration(wanted: document.Document | None = None, **callers: CallerEntry) -> Configuration:
    return Configuration(document=wanted or some_document(), callers=callers)


@pytest.mark.django_db
def test_what_differs_becomes_the_next_revision_and_what_does_not_becomes_none() -> None:
    assert publish.latest() is None
    apply_document(some_document())
    first = publish.publish("ada", note="first")
    assert first == Published(number=1, new=True, changes=tuple(Revision.objects.get().diff.splitlines()))
    assert publish.publish("ada") == Published(number=1, new=False)
    ModelGroup.objects.update(description="changed")
    assert publish.publish("bob") == Published(number=2, new=True, changes=("+ models.chat.description: changed",))
    assert publish.latest() == 2
    newest = Revision.objects.values_list("number", "author", "note", "diff").first()
    assert newest == (2, "bob", "", "+ models.chat.description: changed")


@pytest.mark.django_db
def test_what_does_not_compile_is_stored_and_pending_while_the_last_revision_stays() -> None:
    apply_document(FRAGILE)
    publish.publish("ada")
    assert publish.pending() == ()
    ProviderModel.objects.update(reasoning=None)
    outcome = publish.publish("ada")
    assert isinstance(outcome, Pending)
    assert [str(problem) for problem in outcome.problems] == [f"{BROKEN}: no target of the group supports reasoning"]
    assert publish.pending() == outcome.problems
    assert publish.latest() == 1
    assert publish.load(1).groups["chat"].targets[0].reasoning is not None
    ProviderModel.objects.update(reasoning={"supported": True})
    assert (publish.publish("ada"), publish.pending()) == (Published(number=1, new=False), ())


@pytest.mark.django_db
def test_a_catalog_knows_its_revision_and_time() -> None:
    apply_document(some_document())
    publish.publish("ada")
    catalog = publish.load(1)
    assert (catalog.revision, catalog.created) == (1, int(Revision.objects.get().created.timestamp()))
    kept = publish.catalog_from_json(publish.document_json(1))
    assert (kept.groups, kept.providers) == (catalog.groups, catalog.providers)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"providers": 1}', b'{"extra": {}}', b"\xff"])
def test_what_is_not_a_kept_document_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        publish.catalog_from_json(data)


@pytest.mark.django_db
def test_a_literal_key_is_served_and_noticed_and_stands_in_no_revision() -> None:
    wanted = some_document(providers={"house": declared_provider(api_key="sk-literal")})
    publish.import_configuration(some_configuration(wanted), author="ada")
    assert publish.load(1).providers["house"].api_key == "sk-literal"
    Provider.objects.update(api_key="sk-other")
    assert publish.publish("ada") == Published(number=2, new=True, changes=("~ providers.house.api_key: ***",))
    assert publish.load(2).providers["house"].api_key == "sk-other"
    stored = "".join(str(vars(revision)) for revision in Revision.objects.all())
    assert "sk-" not in stored + publish.document_json(2).decode() + dump(document_from_rows(), {})
    assert publish.catalog_from_json(publish.document_json(2)).providers["house"].api_key is None


@pytest.mark.django_db
def test_a_literal_key_goes_only_where_it_was_meant_for() -> None:
    publish.import_configuration(some_configuration(), author="ada")
    Provider.objects.update(base_url="http://127.0.0.1:9999/v1", api_key="sk-literal")
    assert publish.load(1).providers["house"].api_key is None


@pytest.mark.django_db
def test_publishing_again_goes_back_under_a_new_number() -> None:
    first = some_document(models={"chat": declared_group(), "old": declared_group()})
    publish.import_configuration(some_configuration(first, team=CallerEntry(allow=("old",))), author="ada")
    apply_document(
        some_document(declared_group([declared_target("x", provider="b")]), providers={"b": declared_provider(["x"])})
    )
    publish.publish("ada")
    outcome = publish.republish(1, "bob")
    assert isinstance(outcome, Published)
    assert (outcome.number, outcome.new, document_from_rows()) == (3, True, first)
    newest = Revision.objects.get(number=3)
    assert (newest.author, newest.note, newest.document) == (
        "bob",
        "Revision 1 again",
        Revision.objects.get(number=1).document,
    )
    assert callers_from_rows() == {"team": CallerEntry(allow=("old",))}
    assert publish.republish(3, "bob") == Published(number=3, new=False)


@pytest.mark.django_db
def test_a_revision_that_no_longer_compiles_is_not_published_again_and_changes_nothing() -> None:
    publish.import_configuration(some_configuration(), author="ada")
    Revision.objects.create(
        number=2,
        document='{"models": {"chat": {"strategy": "chance"}}}',
        sha256="",
        author="",
        created=Revision.objects.get().created,
    )
    outcome = publish.republish(2, "bob")
    assert isinstance(outcome, Pending)
    assert [problem.path for problem in outcome.problems] == ["models.chat.strategy", "models.chat.targets"]
    assert (document_from_rows(), publish.latest()) == (some_document(), 2)


@pytest.mark.django_db
def test_a_dry_run_names_every_change_and_makes_none() -> None:
    publish.import_configuration(some_configuration(team=CallerEntry(), old=CallerEntry()), author="ada")
    wanted = some_configuration(some_document(declared_group(description="new")), team=CallerEntry(allow=("chat",)))
    done = publish.import_configuration(wanted, author="ada", dry_run=True)
    changes = ("+ callers.old.active: false", '+ callers.team.allow: ["chat"]', "+ models.chat.description: new")
    assert done.changes == changes
    assert (document_from_rows(), publish.latest()) == (some_document(), 1)
    assert callers_from_rows() == {"old": CallerEntry(), "team": CallerEntry()}
    assert publish.import_configuration(wanted, author="ada").changes == changes
    assert callers_from_rows() == {"old": CallerEntry(active=False), "team": CallerEntry(allow=("chat",))}


@pytest.mark.django_db
def test_an_import_that_cannot_be_published_changes_nothing() -> None:
    publish.import_configuration(some_configuration(), author="ada")
    broken = some_document(
        declared_group(attempts=document.Attempts(cool_down=document.CoolDown(default_ms=9, max_ms=1)))
    )
    with pytest.raises(ConfigurationError):
        publish.import_configuration(some_configuration(broken, new=CallerEntry()), author="ada")
    assert (document_from_rows(), callers_from_rows(), publish.latest()) == (some_document(), {}, 1)


def test_export_and_import_into_an_empty_database_and_export_are_byte_equal(database: str) -> None:
    text = EXPORTED.encode()
    publish.import_configuration(load(text), author="ada")
    assert dump(document_from_rows(), callers_from_rows()) == EXPORTED
    assert publish.import_configuration(load(text), author="ada").published == Published(number=1, new=False)


EXPORTED = """\
version: 1
providers:
  house:
    base_url: https://inference.example/v1
    dialect: anthropic
    api_key_env: KEY
    headers:
      x-team: ml
    timeouts:
      connect_ms: 1
    models:
      small:
        model: 'on'
        input_price_per_million_usd: 0.000001
        pricing_updated_at: '2026-11-01'
        input_modalities: [image, text]
        reasoning:
          supported: true
          efforts: [low]
models:
  chat:
    description: "Ünï\\u2028code"
    strategy: weighted
    targets:
      - provider: house
        model_ref: small
        weight: 0.004
        reasoning: null
      - provider: house
        model_ref: small
        weight: 0.001
      - provider: house
        model_ref: small
        weight: 995
        tags: ['a, b', c]
    routing_policy:
      dynamic_score:
        near_tie: 0.3
        score_terms:
          - name: t
            weights:
              cost_score: 0.1
callers:
  team:
    project: product
    allow: [chat]
    see_routing: true
""".replace("\\u2028", "\\L")


def test_editors_at_the_same_time_publish_one_after_the_other_and_lose_nothing(database: str) -> None:
    names = [f"g{number}" for number in range(6)]
    publish.import_configuration(
        some_configuration(some_document(models={name: declared_group() for name in names})), author="-"
    )
    together = threading.Barrier(len(names))
    outcomes: dict[str, Any] = {}

    def edit(name: str) -> None:
        try:
            together.wait()
            with transaction.atomic():
                ModelGroup.objects.filter(name=name).update(description=f"by {name}")
                outcomes[name] = publish.publish(name)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=edit, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome.number for outcome in outcomes.values()) == [2, 3, 4, 5, 6, 7]
    assert sorted(outcome.changes for outcome in outcomes.values()) == [
        (f"+ models.{name}.description: by {name}",) for name in names
    ]
    newest = publish.load(7)
    assert {name: group.description for name, group in newest.groups.items()} == {name: f"by {name}" for name in names}


# The admin.


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password="x"))
    return client


def messages_of(answer: Any) -> list[str]:
    return [str(message) for message in answer.context["messages"]]


def model_page(**fields: Any) -> dict[str, Any]:
    model = ProviderModel.objects.get()
    return {
        "provider": model.provider_id,
        "name": model.name,
        "model": model.model,
        "tool_support": "{}",
        "input_modalities": ["text"],
        "output_modalities": ["text"],
        "honors_max_tokens": "unknown",
        **fields,
    }


def test_what_breaks_another_object_is_stored_and_shown_as_pending_until_it_is_mended(client: Client) -> None:
    publish.import_configuration(some_configuration(FRAGILE), author="file")
    url = reverse("admin:routing_providermodel_change", args=[ProviderModel.objects.get().pk])
    answer = client.post(url, model_page(reasoning=""), follow=True)
    assert "Stored, but not published: see below." in messages_of(answer)
    assert f"<code>{BROKEN}</code>: no target of the group supports reasoning" in answer.content.decode()
    assert (ProviderModel.objects.get().reasoning, publish.latest()) == (None, 1)
    group = reverse("admin:routing_modelgroup_change", args=[ModelGroup.objects.get().pk])
    pages = [reverse("admin:index"), reverse("admin:routing_modelgroup_changelist"), group, url]
    pages += [reverse("admin:gateway_revision_changelist"), reverse("admin:gateway_revision_change", args=[1])]
    for page in pages:
        shown = client.get(page).content.decode()
        assert "Not published: 1 problem in the stored configuration." in shown, page
        assert BROKEN in shown

    answer = client.post(url, model_page(reasoning='{"supported": true, "always_on": true}'), follow=True)
    assert "Published revision 2." in messages_of(answer)
    for page in pages:
        assert "Not published" not in client.get(page).content.decode()


def test_deleting_publishes_once(client: Client) -> None:
    publish.import_configuration(
        some_configuration(some_document(models={name: declared_group() for name in ("a", "b", "c")})), author="file"
    )
    group = ModelGroup.objects.get(name="a")
    answer = client.post(reverse("admin:routing_modelgroup_delete", args=[group.pk]), {"post": "yes"}, follow=True)
    assert "Published revision 2." in messages_of(answer)
    chosen = list(ModelGroup.objects.values_list("pk", flat=True))
    answer = client.post(
        reverse("admin:routing_modelgroup_changelist"),
        {"action": "delete_selected", "_selected_action": chosen, "post": "yes"},
        follow=True,
    )
    assert "Published revision 3." in messages_of(answer)
    assert (publish.latest(), ModelGroup.objects.count()) == (3, 0)


def test_a_revision_shows_its_changes_and_is_published_again_by_a_button(client: Client) -> None:
    publish.import_configuration(some_configuration(), author="file")
    ModelGroup.objects.update(description="<b>")
    publish.publish("bob")
    shown = client.get(reverse("admin:gateway_revision_change", args=[2])).content.decode()
    assert "+ models.chat.description: &lt;b&gt;" in shown
    again = reverse("admin:gateway_revision_publish", args=[1])
    first = client.get(reverse("admin:gateway_revision_change", args=[1])).content.decode()
    assert f'action="{again}"' in first
    assert client.get(again).status_code == 405
    answer = client.post(again, follow=True)
    assert messages_of(answer) == ["Published revision 3."]
    assert ModelGroup.objects.get().description == ""
    assert client.post(reverse("admin:gateway_revision_publish", args=[99])).status_code == 404
    listed = client.get(reverse("admin:gateway_revision_changelist")).content.decode()
    assert "- models.chat.description: &lt;b&gt;" in listed


def test_nobody_edits_or_adds_a_revision(client: Client) -> None:
    publish.import_configuration(some_configuration(), author="file")
    assert client.get(reverse("admin:gateway_revision_add")).status_code == 403
    assert client.get(reverse("admin:gateway_revision_delete", args=[1])).status_code == 403
    assert client.post(reverse("admin:gateway_revision_change", args=[1]), {"note": "x"}).status_code == 403
    assert Revision.objects.get().note == ""


def test_who_only_sees_revisions_does_not_publish_them_again_nor_sees_the_pending_problems(db: None) -> None:
    publish.import_configuration(some_configuration(FRAGILE), author="file")
    ProviderModel.objects.update(reasoning=None)
    reader = User.objects.create_user("eve", password="x", is_staff=True)
    reader.user_permissions.add(Permission.objects.get(codename="view_revision"))
    client = Client()
    client.force_login(reader)
    page = client.get(reverse("admin:gateway_revision_change", args=[1])).content.decode()
    assert "Publish again" not in page
    assert "Not published" not in page
    assert client.post(reverse("admin:gateway_revision_publish", args=[1])).status_code == 403
    assert publish.latest() == 1
