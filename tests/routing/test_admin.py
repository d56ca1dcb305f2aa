"""The admin's pages of providers and groups, through Django's test client."""

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.forms import NullBooleanSelect
from django.test import Client
from django.urls import reverse

from gateway import publish
from gateway.config import load, plain
from gateway.models import Revision
from routing.models import ModelGroup, Provider, ProviderModel, ScoreTerm, Target
from routing.store import document_from_rows

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("ada", password="x"))
    return client


def form_of(client: Client, url: str) -> dict[str, Any]:
    """What a browser would send back from this page unchanged."""
    context = client.get(url).context
    forms = [
        context["adminform"].form,
        *(context_form for fs in context["inline_admin_formsets"] for context_form in _parts(fs)),
    ]
    data: dict[str, Any] = {}
    for form in forms:
        for bound in form:
            value = bound.value()
            if isinstance(bound.field.widget, NullBooleanSelect):
                data[bound.html_name] = {True: "true", False: "false"}.get(value, "unknown")
            elif value is not None and value is not False:
                data[bound.html_name] = "on" if value is True else value
    return data


def _parts(inline: Any) -> list[Any]:
    return [inline.formset.management_form, *inline.formset.forms]


def add_inline(data: dict[str, Any], prefix: str, **fields: Any) -> None:
    index = int(data[f"{prefix}-TOTAL_FORMS"])
    data[f"{prefix}-TOTAL_FORMS"] = index + 1
    data.update({f"{prefix}-{index}-{name}": value for name, value in fields.items()})


def messages_of(answer: Any) -> list[str]:
    return [str(message) for message in answer.context["messages"]]


def errors_of(answer: Any) -> dict[str, list[str]]:
    """By the name of the field in the page."""
    context = answer.context
    found: dict[str, list[str]] = {}
    parts = [
        context["adminform"].form,
        *(form for each in context["inline_admin_formsets"] for form in each.formset.forms),
    ]
    for form in parts:
        found |= {form.add_prefix(name): list(map(str, errors)) for name, errors in form.errors.items()}
    return found


MODEL = {"input_modalities": ["text"], "output_modalities": ["text"], "tool_support": "{}"}


def some_rows() -> ModelGroup:
    provider = Provider.objects.create(name="house", base_url="http://127.0.0.1:9001/v1", dialect="openai-chat")
    model = ProviderModel.objects.create(provider=provider, name="small", model="small-1")
    group = ModelGroup.objects.create(name="chat")
    Target.objects.create(group=group, provider_model=model)
    return group


def change(row: Any) -> str:
    return reverse(f"admin:routing_{row._meta.model_name}_change", args=[row.pk])


def test_provider_with_models_then_group_with_targets_and_terms_are_published_as_they_are_saved(client: Client) -> None:
    add = reverse("admin:routing_provider_add")
    data = form_of(client, add) | {
        "name": "house",
        "base_url": "http://127.0.0.1:9001/v1",
        "dialect": "openai-chat",
        "headers": '{"x-team": "ml"}',
    }
    add_inline(data, "catalogue", name="small", model="small-1", input_price_per_million_usd="0.004", **MODEL)
    answer = client.post(add, data, follow=True)
    assert [text for text in messages_of(answer) if "revision" in text] == ["Published revision 1."]

    add = reverse("admin:routing_modelgroup_add")
    data = form_of(client, add) | {"name": "chat", "strategy": "dynamic_score"}
    small = ProviderModel.objects.get()
    add_inline(data, "targets", position=1, provider_model=small.pk, weight="0.001", tags="fast", overrides="{}")
    add_inline(
        data, "targets", position=0, provider_model=small.pk, weight="995", overrides='{"context_tokens": 32768}'
    )
    add_inline(
        data, "score_terms", position=0, name="cheap", expression="cost_score", when='{"tools": false}', share="1"
    )
    answer = client.post(add, data, follow=True)
    assert [text for text in messages_of(answer) if "revision" in text] == ["Published revision 2."]

    assert plain(document_from_rows()) == {
        "providers": {
            "house": {
                "base_url": "http://127.0.0.1:9001/v1",
                "dialect": "openai-chat",
                "headers": {"x-team": "ml"},
                "models": {"small": {"model": "small-1", "input_price_per_million_usd": 0.004}},
            }
        },
        "models": {
            "chat": {
                "strategy": "dynamic_score",
                "targets": [
                    {"provider": "house", "model_ref": "small", "weight": 995, "context_tokens": 32768},
                    {"provider": "house", "model_ref": "small", "weight": 0.001, "tags": ["fast"]},
                ],
                "routing_policy": {
                    "dynamic_score": {
                        "score_terms": [{"name": "cheap", "when": {"tools": False}, "expression": "cost_score"}]
                    }
                },
            }
        },
    }


def test_a_page_saved_unchanged_publishes_nothing_and_keeps_every_value(client: Client) -> None:
    publish.import_configuration(load(FULL), author="file")
    for row in (*Provider.objects.all(), *ProviderModel.objects.all(), *ModelGroup.objects.all()):
        answer = client.post(change(row), form_of(client, change(row)), follow=True)
        assert "Nothing differs from revision 1, which goes on serving." in messages_of(answer)
    assert Revision.objects.count() == 1


FULL = b"""
providers:
  house:
    base_url: http://127.0.0.1:9001/v1
    dialect: openai-chat
    api_key: literal-key
    headers: {x-team: ml}
    ca_file: /etc/ca.pem
    timeouts: {connect_ms: 1, idle_ms: 2}
    models:
      small:
        model: small-1
        input_price_per_million_usd: 0.004
        cache_ttl_seconds: 300
        pricing_updated_at: 2026-11-01
        context_tokens: 131072
        input_modalities: [image, text]
        output_modalities: []
        tool_support: {openai_chat: [tools, tool_choice], anthropic_messages: []}
        honors_max_tokens: false
        output_token_field: max_completion_tokens
        unsupported_request_features: [developer_role, stream_options]
        reasoning: {supported: true, efforts: [low, high]}
        validation: {status: passed, workload: coding, validated_at: 2026-11-01, quality_score: 0.93}
models:
  chat:
    description: All of it
    strategy: dynamic_score
    attempts: {max: 2, retry_percent: 12.5, cool_down: {max_ms: 5000}}
    targets:
      - {provider: house, model_ref: small, weight: 0.004, tags: ["a,b", c], tier: standard}
      - {provider: house, model: other, weight: 0, reasoning: null, validation: {status: failed}}
    thresholds: {max_consecutive_failures: 7, probe: {first_seconds: 0.5}}
    routing_policy:
      dynamic_score:
        near_tie: 0.001
        affinity: {enabled: false, session_header: x-conversation}
        signals: {cost: {enabled: true}, prompt_features: {enabled: true, features: [diff, code]}}
        score_terms:
          - {name: a, when: {prompt_feature: code}, require_tags: [c], weights: {cost_score: 3, latency_score: 1}}
          - {name: b, share: 0.25, expression: "min(cost_score, 0.5)", prefer_tags: [c]}
        evaluation_metadata:
          - {provider: house, model: small, quality_score: 0.9, validation_date: 2026-10-01, max_age_days: 90, tags: [x]}
        thresholds: {max_error_rate: 0.03, min_observations: 3}
"""


def test_a_wrong_expression_is_refused_with_its_position_beside_its_field(client: Client) -> None:
    url = change(some_rows())
    data = form_of(client, url)
    add_inline(data, "score_terms", position=0, name="good", expression="cost_score", share="1", when="{}")
    add_inline(data, "score_terms", position=1, name="bad", expression="1 + latencey_score", share="1", when="{}")
    answer = client.post(url, data)
    assert errors_of(answer) == {
        "score_terms-1-expression": ["unknown score 'latencey_score' at 5; did you mean 'latency_score'?"]
    }
    assert "unknown score &#x27;latencey_score&#x27; at 5" in answer.content.decode()
    assert not ScoreTerm.objects.exists()
    assert not Revision.objects.exists()


def test_each_problem_stands_at_the_field_that_holds_it(client: Client) -> None:
    url = change(some_rows())
    data = form_of(client, url) | {"near_tie": "2", "targets-0-weight": "-1", "affinity_session_header": "a b"}
    data["targets-0-overrides"] = '{"reasoning": {"eforts": ["low"]}, "wieght": 3}'
    add_inline(data, "score_terms", position=0, name="t", expression="1", share="1", when='{"complexity": "simple"}')
    assert errors_of(client.post(url, data)) == {
        "near_tie": ["must be from 0 to 1"],
        "affinity_session_header": ["must be a header name"],
        "targets-0-weight": ["must be at least 0"],
        "targets-0-overrides": [
            "reasoning.eforts: unknown key; did you mean 'efforts'?",
            "wieght: unknown key; did you mean 'weight'?",
        ],
        "score_terms-0-when": ["complexity: unknown key; did you mean 'complexity_lte'?"],
    }


def test_a_problem_between_fields_stands_at_the_one_at_fault(client: Client) -> None:
    url = change(some_rows())
    data = form_of(client, url) | {"cool_down_default_ms": "70000"}
    assert errors_of(client.post(url, data)) == {"cool_down_default_ms": ["must not be above max_ms (60,000)"]}


def test_a_group_needs_a_target(client: Client) -> None:
    url = reverse("admin:routing_modelgroup_add")
    answer = client.post(url, form_of(client, url) | {"name": "chat"})
    assert errors_of(answer) == {"__all__": ["targets: must name at least one target"]}


def test_a_target_is_a_catalogued_model_or_a_provider_with_a_name(client: Client) -> None:
    group = some_rows()
    url = change(group)
    house = Provider.objects.get()
    data = form_of(client, url)
    add_inline(data, "targets", position=1, weight="1", overrides="{}", tags="x")
    assert errors_of(client.post(url, data)) == {
        "targets-1-provider_model": ["Choose a model of the catalogue, or a provider and an upstream name."]
    }
    data["targets-1-provider"], data["targets-1-model"] = house.pk, "other-1"
    assert client.post(url, data).status_code == 302
    assert [str(target) for target in group.targets.all()] == ["house/small", "house/other-1"]


def test_a_literal_key_is_never_shown_and_goes_when_the_base_url_leads_elsewhere(client: Client) -> None:
    some_rows()
    house = Provider.objects.get()
    url = change(house)
    answer = client.post(url, form_of(client, url) | {"new_api_key": "sk-literal-123"}, follow=True)
    assert "Published revision 1." in messages_of(answer)
    house.refresh_from_db()
    assert house.api_key == "sk-literal-123"
    for page in (url, reverse("admin:routing_provider_changelist"), reverse("admin:gateway_revision_change", args=[1])):
        assert "sk-literal-123" not in client.get(page).content.decode()
    assert re.search(r"Literal key.*?\bset\b", client.get(url).content.decode(), re.S)

    client.post(url, form_of(client, url) | {"max_in_flight": "7"})
    house.refresh_from_db()
    assert (house.api_key, house.max_in_flight) == ("sk-literal-123", 7)

    answer = client.post(url, form_of(client, url) | {"base_url": "http://127.0.0.1:9002/v1"}, follow=True)
    assert "The base URL leads elsewhere now: the literal key was removed." in messages_of(answer)
    house.refresh_from_db()
    assert house.api_key is None


def test_a_literal_key_can_be_removed(client: Client) -> None:
    some_rows()
    Provider.objects.update(api_key="k")
    url = change(Provider.objects.get())
    client.post(url, form_of(client, url) | {"clear_api_key": "on"})
    assert Provider.objects.get().api_key is None


def test_a_literal_key_is_refused_where_the_base_url_is_not_loopback(client: Client) -> None:
    some_rows()
    url = change(Provider.objects.get())
    data = form_of(client, url) | {"base_url": "https://inference.example/v1", "new_api_key": "sk-x"}
    answer = client.post(url, data)
    assert errors_of(answer) == {
        "new_api_key": ["is allowed only where base_url is literally loopback; use api_key_env or api_key_file"]
    }
    assert "sk-x" not in answer.content.decode()


def test_a_model_on_its_own_page_is_judged_like_one_on_its_providers(client: Client) -> None:
    some_rows()
    small = ProviderModel.objects.get()
    data = form_of(client, change(small)) | {"input_price_per_million_usd": "0.00000001", "reasoning": '{"control": 1}'}
    assert errors_of(client.post(change(small), data)) == {
        "reasoning": ["control: must be one of effort, budget, any, not a number"]
    }
    data["reasoning"] = ""
    assert errors_of(client.post(change(small), data)) == {
        "input_price_per_million_usd": ["must be a whole number of micro-dollars (at most 6 decimals)"]
    }
    client.post(change(small), data | {"input_price_per_million_usd": "0.25"})
    assert ProviderModel.objects.get().input_price_per_million_usd == 0.25
    assert Revision.objects.count() == 1


def test_two_models_of_one_name_are_refused(client: Client) -> None:
    some_rows()
    url = change(Provider.objects.get())
    data = form_of(client, url)
    add_inline(data, "catalogue", name="small", model="other", **MODEL)
    answer = client.post(url, data)
    assert answer.status_code == 200
    assert ProviderModel.objects.count() == 1


def test_the_lists_say_where_credentials_come_from(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_KEY", "x")
    some_rows()
    Provider.objects.update(api_key_env="HOUSE_KEY")
    Provider.objects.create(name="b", base_url="https://b.example/v1", dialect="anthropic", api_key_env="NO_SUCH_KEY")
    page = client.get(reverse("admin:routing_provider_changelist")).content.decode()
    assert "$HOUSE_KEY, set" in page
    assert "$NO_SUCH_KEY, not set in this process" in page
    groups = client.get(reverse("admin:routing_modelgroup_changelist")).content.decode()
    assert "house/small 1" in groups
    found = client.get(reverse("admin:routing_providermodel_changelist") + "?q=small").content.decode()
    assert "small-1" in found


def test_a_model_in_use_cannot_be_deleted(client: Client) -> None:
    some_rows()
    house = Provider.objects.get()
    answer = client.post(reverse("admin:routing_provider_delete", args=[house.pk]), {"post": "yes"})
    assert answer.status_code == 200
    assert Provider.objects.count() == 1


@pytest.mark.parametrize("typed", ["house/small", "use/sma", "house small", "small-1"])
def test_a_model_is_found_by_the_name_that_is_shown_where_one_is_chosen(client: Client, typed: str) -> None:
    some_rows()
    other = Provider.objects.create(name="other", base_url="http://127.0.0.1:9002/v1", dialect="openai-chat")
    ProviderModel.objects.create(provider=other, name="large", model="large-1")
    field = {"app_label": "routing", "model_name": "target", "field_name": "provider_model", "term": typed}
    found = client.get(reverse("admin:autocomplete"), field).json()["results"]
    assert [result["text"] for result in found] == ["house/small"]


def test_a_folded_section_with_an_error_is_open(client: Client) -> None:
    url = change(some_rows())
    folded = re.compile(r"<details.*?</details>", re.S)

    def hidden(page: str) -> str:
        return "".join(folded.findall(page))

    before = client.get(url).content.decode()
    assert 'name="cool_down_max_ms"' in hidden(before)
    assert 'name="targets-0-tier"' in hidden(before)
    data = form_of(client, url) | {"cool_down_max_ms": "0", "targets-0-overrides": "[]"}
    answer = client.post(url, data)
    assert sorted(errors_of(answer)) == ["cool_down_max_ms", "targets-0-overrides"]
    after = answer.content.decode()
    assert 'name="cool_down_max_ms"' not in hidden(after)
    assert 'name="targets-0-tier"' not in hidden(after)
    assert 'name="probe_max_seconds"' in hidden(after)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"x-a": "1", "x-a": "2"}', 'The key "x-a" is given twice.'),
        ('{"x-a": {"b": 1, "b": 2}}', 'The key "b" is given twice.'),
        ('{"x-a": NaN}', "NaN is no JSON number."),
        ('{"x-a": }', "This is not JSON: Expecting value at line 1, column 9."),
        ("9" * 5000, "A number is too long, or brackets are nested too deep."),
        ("[" * 100_000, "A number is too long, or brackets are nested too deep."),
    ],
    ids=["twice", "twice-inside", "not-a-number", "not-json", "long-number", "deep"],
)
def test_json_that_the_file_would_refuse_is_refused_and_stays_as_it_was_typed(
    client: Client, text: str, told: str
) -> None:
    some_rows()
    url = change(Provider.objects.get())
    answer = client.post(url, form_of(client, url) | {"headers": text})
    assert errors_of(answer) == {"headers": [told]}
    assert answer.context["adminform"].form["headers"].value() == text


def test_a_json_field_that_is_emptied_holds_nothing_afterwards(client: Client) -> None:
    some_rows()
    Provider.objects.update(headers={"x-team": "ml"})
    ProviderModel.objects.update(tool_support={"openai_chat": ["tools"]}, reasoning={"supported": True})
    url = change(Provider.objects.get())
    answer = client.post(
        url,
        form_of(client, url)
        | {"headers": " ", "catalogue-0-tool_support": "", "catalogue-0-reasoning": "", "catalogue-0-validation": ""},
    )
    assert answer.status_code == 302
    row = ProviderModel.objects.get()
    assert (Provider.objects.get().headers, row.tool_support, row.reasoning, row.validation) == ({}, {}, None, None)


def test_new_targets_come_after_the_others_in_the_order_of_the_page(client: Client) -> None:
    group = some_rows()
    Target.objects.update(position=7)
    house = Provider.objects.get()
    url = change(group)
    data = form_of(client, url)
    for name in ("second", "third"):
        add_inline(data, "targets", position="", provider=house.pk, model=name, weight="1", overrides="", tags="")
    assert client.post(url, data).status_code == 302
    assert [str(target) for target in group.targets.all()] == ["house/small", "house/second", "house/third"]


def test_a_new_model_reads_and_writes_text_unless_it_is_told_otherwise(client: Client) -> None:
    some_rows()
    add = reverse("admin:routing_providermodel_add")
    data = form_of(client, add) | {"provider": Provider.objects.get().pk, "name": "large", "model": "large-1"}
    assert client.post(add, data).status_code == 302
    large = ProviderModel.objects.get(name="large")
    assert (large.input_modalities, large.output_modalities) == (["text"], ["text"])


def test_numbers_are_shown_without_a_fraction_that_they_do_not_have(client: Client) -> None:
    page = client.get(change(some_rows())).content.decode()
    shown = {name: re.search(rf'name="{name}" value="([^"]*)"', page) for name in ("contrast", "near_tie")}
    assert {name: found and found[1] for name, found in shown.items()} == {"contrast": "4", "near_tie": "0.07"}
