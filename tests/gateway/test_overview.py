"""The admin's first page: what comes next, what is served, what is missing."""

from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from accounts import tokens
from accounts.models import Caller
from gateway import config, publish
from gateway.overview import Step
from routing.core.errors import ConfigurationError, Problem
from routing.models import ModelGroup, Provider, ProviderModel, Target

pytestmark = pytest.mark.django_db

OVERVIEW = reverse("admin:index")
OWN_FILE = f"{settings.PILOTAGE.data_dir}/token_pepper"
REFUSED = "must not lie in the data directory, whose files are the gateway's own secrets"


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password="x"))
    return client


def next_step(client: Client) -> Step | None:
    steps: tuple[Step, ...] = client.get(OVERVIEW).context["steps"]
    return next((step for step in steps if step.is_next), None)


def next_action(client: Client) -> tuple[str, str | None] | None:
    step = next_step(client)
    return None if step is None else (step.action, step.url)


def test_each_step_leads_to_the_next_until_a_request_can_be_answered(client: Client) -> None:
    assert next_action(client) == ("Add a provider", "/admin/routing/provider/add/")
    house = Provider.objects.create(name="house", base_url="http://127.0.0.1:9001/v1", dialect="anthropic")
    assert next_action(client) == ("Add a model", f"/admin/routing/providermodel/add/?provider={house.pk}")
    small = ProviderModel.objects.create(provider=house, name="small", model="small-1")
    assert next_action(client) == ("Add a model group", "/admin/routing/modelgroup/add/")
    Target.objects.create(group=ModelGroup.objects.create(name="chat"), provider_model=small)
    assert next_action(client) == ("Add a caller", "/admin/accounts/caller/add/")
    app = Caller.objects.create(name="app", allow=["chat"])
    assert next_action(client) == ("Issue a token", f"/admin/accounts/token/add/?caller={app.pk}")
    row, _ = tokens.issue(app)
    assert next_action(client) is None
    answer = client.get(OVERVIEW)
    assert answer.context["example"].command.startswith("curl http://testserver/v1/messages ")
    tokens.revoke(row)
    assert next_action(client) == ("Issue a token", f"/admin/accounts/token/add/?caller={app.pk}")


def test_the_choice_is_not_made_where_there_is_one(client: Client) -> None:
    for name in ("a", "b"):
        Provider.objects.create(name=name, base_url="http://127.0.0.1:9001/v1", dialect="anthropic")
    assert next_action(client) == ("Add a model", "/admin/routing/providermodel/add/")


CONFIGURED = """
providers:
  hosted: {base_url: "https://a.example/v1", dialect: openai-chat, api_key_env: NO_SUCH_KEY_HERE}
  unused: {base_url: "https://b.example/v1", dialect: openai-chat, api_key_env: NO_SUCH_KEY_EITHER}
models:
  chat: {strategy: static, targets: [{provider: hosted, model: m}]}
  code: {strategy: static, targets: [{provider: hosted, model: m}]}
callers:
  app: {allow: [chat]}
"""


def test_what_keeps_requests_from_being_answered_is_told(client: Client) -> None:
    publish.import_configuration(config.load(CONFIGURED.encode()), author="file")
    answer = client.get(OVERVIEW)
    assert [each.text for each in answer.context["attention"]] == [
        "Provider hosted has no key: $NO_SUCH_KEY_HERE, not set in this process.",
        "No active caller may use the model group code.",
    ]
    assert [(count.title, count.number) for count in answer.context["counts"]] == [
        ("Providers", 2),
        ("Provider models", 0),
        ("Model groups", 2),
        ("Callers", 1),
        ("Tokens", 0),
    ]
    assert "is served since" in answer.content.decode()


def test_everybody_sees_only_what_they_may(client: Client) -> None:
    publish.import_configuration(config.load(CONFIGURED.encode()), author="file")
    clerk = User.objects.create_user("clerk", password="x", is_staff=True)
    client.force_login(clerk)
    assert shown_to(client) == ([], [], [])
    clerk.user_permissions.add(*Permission.objects.filter(codename__in=["view_caller", "add_token"]))
    assert shown_to(client) == (["Callers"], [], [])
    assert next_action(client) == ("Issue a token", f"/admin/accounts/token/add/?caller={Caller.objects.get().pk}")


def shown_to(client: Client) -> tuple[Any, ...]:
    context = client.get(OVERVIEW).context
    return [count.title for count in context["counts"]], list(context["attention"]), list(context["revisions"])


def test_a_key_file_in_the_data_directory_is_refused_in_a_file_and_beside_its_field(client: Client) -> None:
    text = f"""
providers:
  p: {{base_url: "https://a.example/v1", dialect: openai-chat, api_key_file: {OWN_FILE}}}
"""
    with pytest.raises(ConfigurationError) as refused:
        config.load(text.encode())
    assert refused.value.problems == (Problem("providers.p.api_key_file", f"{REFUSED} (line 3)"),)

    add = reverse("admin:routing_provider_add")
    page = client.get(add)
    data = {
        bound.html_name: bound.value()
        for form in (page.context["adminform"].form, page.context["inline_admin_formsets"][0].formset.management_form)
        for bound in form
        if bound.value() not in (None, False)
    }
    data |= {"name": "p", "base_url": "https://a.example/v1", "dialect": "openai-chat", "api_key_file": OWN_FILE}
    answer = client.post(add, data | {"catalogue-TOTAL_FORMS": "0"})
    assert answer.context["adminform"].form.errors == {"api_key_file": [REFUSED]}
    assert not Provider.objects.exists()


def test_rows_that_say_so_anyway_are_not_published(client: Client) -> None:
    Provider.objects.create(name="p", base_url="https://a.example/v1", dialect="anthropic", api_key_file=OWN_FILE)
    pending = (Problem("providers.p.api_key_file", REFUSED),)
    assert publish.publish("ada") == publish.Pending(problems=pending)
    assert publish.pending() == pending
