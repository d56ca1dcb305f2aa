"""Forms of providers, models and groups. What a form says is judged by the reader of the configuration file, and a whole
page by the compiler, so that the admin and a file are told the same; each problem stands beside its field."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import FloatField, JSONField
from django.db.models import Model as Row
from django.forms.fields import InvalidJSONInput
from django.forms.models import construct_instance
from unfold.forms import PaginationInlineFormSet
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminPasswordWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from routing import key_files, models, store
from routing.core import document
from routing.core.compile import compile_document
from routing.core.errors import ConfigurationError
from routing.core.expressions import NAMES
from routing.core.reading import below, read

if TYPE_CHECKING:
    RowForm = forms.ModelForm[Any]
else:
    RowForm = forms.ModelForm


class WordsField(forms.CharField):
    """A list of words, written with commas between them; as JSON when a word holds a comma."""

    widget = UnfoldAdminTextInputWidget

    def __init__(self, **kwargs: Any) -> None:
        kwargs.pop("encoder", None)
        kwargs.pop("decoder", None)
        super().__init__(**kwargs)

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        plain = all(isinstance(word, str) and word and word == word.strip() and "," not in word for word in value)
        if plain and not (value and value[0].startswith("[")):
            return ", ".join(value)
        return json.dumps(value, ensure_ascii=False)

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        if text.startswith("["):
            try:
                return json.loads(text)
            except ValueError:
                raise ValidationError("Words with commas between them, or a JSON list.") from None
        return [word.strip() for word in text.split(",") if word.strip()]

    def has_changed(self, initial: Any, data: Any) -> bool:
        try:
            return bool((initial or []) != self.to_python(data))
        except ValidationError:
            return True


class NumberField(forms.FloatField):
    """Shows 70 where the column holds 70.0."""

    def prepare_value(self, value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


class JsonField(forms.JSONField):
    """Shown in lines that can be read, and empty where there is nothing; refuses what the file refuses: a key twice, and
    words that are no JSON."""

    def __init__(self, *, show_hidden_initial: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)

    def prepare_value(self, value: Any) -> Any:
        if isinstance(value, InvalidJSONInput):
            return value
        if value in (None, {}, []):
            return ""
        short = json.dumps(value, ensure_ascii=False)
        return short if len(short) <= JSON_LINE else json.dumps(value, ensure_ascii=False, indent=2)

    def bound_data(self, data: Any, initial: Any) -> Any:
        """As it was typed."""
        return initial if self.disabled else InvalidJSONInput(data or "")

    def to_python(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if not value.strip():
            return self.initial() if callable(self.initial) else None
        try:
            return json.loads(value, object_pairs_hook=_each_key_once, parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            raise ValidationError(f"This is not JSON: {error.msg} at {where}.", code="invalid") from None
        except (ValueError, RecursionError):  # a number of thousands of digits, a nest of thousands of brackets
            raise ValidationError("A number is too long, or brackets are nested too deep.", code="invalid") from None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read_so_far: dict[str, Any] = {}
    for key, value in pairs:
        if key in read_so_far:
            raise ValidationError(f"The key {json.dumps(key[:64], ensure_ascii=False)} is given twice.", code="invalid")
        read_so_far[key] = value
    return read_so_far


def _no_constant(word: str) -> Any:
    raise ValidationError(f"{word} is no JSON number.", code="invalid")


JSON_LINE = 72
"""The longest JSON that is shown in one line."""


def _kinds(model: type[Row]) -> dict[str, type[forms.Field]]:
    """The fields for columns that Django's own would show as they are stored."""
    kinds: dict[type, type[forms.Field]] = {FloatField: NumberField, JSONField: JsonField}
    return {each.name: kinds[type(each)] for each in model._meta.fields if type(each) in kinds}


def _code(rows: int) -> UnfoldAdminTextareaWidget:
    return UnfoldAdminTextareaWidget(attrs={"rows": rows, "class": "pilotage-code", "spellcheck": "false"})


class ChoicesField(forms.MultipleChoiceField):
    """A list whose order says nothing; the order that it had is kept."""

    widget = UnfoldAdminCheckboxSelectMultipleWidget


class ReadForm(RowForm):
    """A row judged by the reader: its problems are placed at the columns that hold the values."""

    kind: ClassVar[type]
    columns: ClassVar[store.Columns]

    def plain(self) -> dict[str, Any]:
        """The row as the file says it."""
        raise NotImplementedError

    def _post_clean(self) -> None:
        """Before Django's own check of the row, which leaves out the fields that have errors already."""
        construct_instance(self, self.instance, self._meta.fields, self._meta.exclude)
        self.judge()
        super()._post_clean()  # type: ignore[misc]  # Django's hook, which the stubs leave out

    def judge(self) -> None:
        refused = frozenset(self.errors)
        for problem in read(self.kind, self.plain())[1]:
            field, rest = self.field_at(problem.path)
            if field not in refused:
                self.add_error(field, f"{rest}: {problem.message}" if rest else problem.message)

    def place(self, path: str, message: str) -> None:
        """`path`: below this row."""
        field, rest = self.field_at(path)
        self.add_error(field, f"{rest}: {message}" if rest else message)

    def field_at(self, path: str) -> tuple[str | None, str]:
        """The field that holds what is at `path`, and where inside it."""
        best = ""
        found = None
        for column, keys in self.columns.items():
            place = ".".join(keys)
            if len(place) > len(best) and (path == place or path.startswith((f"{place}.", f"{place}["))):
                best, found = place, column
        field = self.field_of(found) if found else None
        if field is None or field not in self.fields:
            return None, path
        return field, path[len(best) :].removeprefix(".")

    def field_of(self, column: str) -> str:
        return column

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        for name, value in cleaned.items():
            if isinstance(self.fields[name], ChoicesField):
                before = getattr(self.instance, name)
                cleaned[name] = before if sorted(before) == sorted(value) else value
        return cleaned


def _name_the_empty_choice(field: forms.Field, text: str, others: list[tuple[str, str]]) -> None:
    assert isinstance(field, forms.ChoiceField)
    field.choices = [("", text), *others]


class ProviderForm(ReadForm):
    kind = document.Provider
    columns = store.PROVIDER

    new_api_key = forms.CharField(
        label="New literal key",
        required=False,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}, render_value=False),
        help_text="Only where the base URL is this machine (127.0.0.0/8, ::1, localhost); never shown again. "
        "Everywhere else name an environment variable or a file.",
    )
    clear_api_key = forms.BooleanField(label="Remove the literal key", required=False, widget=UnfoldBooleanSwitchWidget)

    class Meta:
        model = models.Provider
        exclude = ("api_key",)
        field_classes: ClassVar = _kinds(models.Provider)
        widgets: ClassVar = {"headers": _code(3)}
        labels: ClassVar = {"api_key_env": "Environment variable", "api_key_file": "File"}
        help_texts: ClassVar = {
            "name": "How targets and the configuration file call it. 1 to 64 of a-z, 0-9, '.', '_' and '-'.",
            "dialect": "The API that is spoken at the base URL; callers of this dialect are passed through unchanged.",
            "api_key_env": "Its name, such as OPENAI_API_KEY, not the key. Each gateway process reads its own environment.",
            "api_key_file": "Its path, as each gateway process sees it. Read again when the file changes.",
            "auth": "By dialect: x-api-key for Anthropic, Authorization: Bearer for the others.",
            "allow_private_addresses": "For a host name that resolves to a private or loopback address, such as another "
            "container. A base URL that is literally 127.0.0.0/8, ::1 or localhost is always allowed.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _name_the_empty_choice(self.fields["auth"], "by dialect", models.AUTHS)
        self._was = (self.instance.base_url, self.instance.api_key)
        self.key_was_cleared = False
        """The base URL has another origin now, and the stored key was not meant for that."""

    def plain(self) -> dict[str, Any]:
        return store.plain_provider(self.instance, ())

    def field_of(self, column: str) -> str:
        return "new_api_key" if column == "api_key" else column

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        base_url, key = self._was
        moved = store.origin(base_url) != store.origin(cleaned.get("base_url") or base_url)
        if cleaned.get("new_api_key"):
            self.instance.api_key = cleaned["new_api_key"]
        elif cleaned.get("clear_api_key") or moved:
            self.instance.api_key = None
            self.key_was_cleared = bool(key and moved)
        return cleaned


class ProviderModelForm(ReadForm):
    kind = document.Model
    columns = store.PROVIDER_MODEL

    input_modalities = ChoicesField(
        label="Reads", choices=models.MODALITIES, initial=models.text_only, required=False, help_text="Default: text."
    )
    output_modalities = ChoicesField(
        label="Writes", choices=models.MODALITIES, initial=models.text_only, required=False, help_text="Default: text."
    )
    unsupported_request_features = ChoicesField(
        label="Does not understand", choices=models.REQUEST_FEATURES, required=False
    )

    class Meta:
        model = models.ProviderModel
        fields = ("provider", "name", *store.PROVIDER_MODEL)
        field_classes: ClassVar = _kinds(models.ProviderModel)
        widgets: ClassVar = {name: _code(3) for name in ("tool_support", "reasoning", "validation")}
        labels: ClassVar = {
            "input_price_per_million_usd": "Input price, $ per million",
            "output_price_per_million_usd": "Output price, $ per million",
            "cached_input_price_per_million_usd": "Cached input price",
            "cache_write_price_per_million_usd": "Cache write price",
            "cache_write_1h_price_per_million_usd": "Cache write price, one hour",
        }
        help_texts: ClassVar = {
            "name": "What targets call it, the file's model_ref. 1 to 64 of a-z, 0-9, '.', '_' and '-'.",
            "model": "The model name that goes to the provider, as the provider spells it.",
            "max_output_tokens": "A request with a larger cap goes elsewhere. Empty: no limit known.",
            "input_price_per_million_usd": "US dollars for a million tokens. Empty: unknown; 0: known to be free.",
            "output_price_per_million_usd": "Likewise. Both are needed for the cost score.",
            "cached_input_price_per_million_usd": "For input read from the provider's cache; US dollars per million.",
            "cache_write_price_per_million_usd": "For input written to the cache; US dollars per million.",
            "cache_write_1h_price_per_million_usd": "For an hour in the cache; US dollars per million.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _name_the_empty_choice(self.fields["output_token_field"], "as it came", models.OUTPUT_TOKEN_FIELDS)

    def plain(self) -> dict[str, Any]:
        return store.plain_model(self.instance)


class ModelGroupForm(ReadForm):
    kind = document.Group
    columns = store.MODEL_GROUP

    prompt_features = ChoicesField(label="Features to look for", choices=models.FEATURES, required=False)

    class Meta:
        model = models.ModelGroup
        fields = ("name", *store.MODEL_GROUP)
        field_classes: ClassVar = {
            name: kind for name, kind in _kinds(models.ModelGroup).items() if name != "prompt_features"
        }
        help_texts: ClassVar = {
            "name": "The model name that callers ask for. 1 to 64 of a-z, 0-9, '.', '_' and '-'.",
            "description": "For people.",
            "strategy": "How one of the targets is chosen. The settings and score terms of dynamic_score show with it.",
            "model_identity": "What answers say in “model”. Default: the upstream model's name.",
            "normalization": "Default: ratio.",
            "client_cancellations": "Whether they count against the target. Default: when nothing had come yet.",
            "when_all_excluded": "When every target is beyond a limit. Default: the least bad target.",
            "max_score_adjustment_percent": "How far scores may move traffic away from the weights, in percent. "
            "0: not at all; 100: scores alone. Default 70.",
        }

    def plain(self) -> dict[str, Any]:
        return store.plain_group(self.instance, (), (), ())


class PlacedForm(ReadForm):
    """A row of an ordered part of a page. A new one has no position until `PageFormSet` gives it the last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["position"].required = False
        if self.instance.pk is None:
            self.initial["position"] = None


class TargetForm(PlacedForm):
    kind = document.Target
    columns: ClassVar[store.Columns] = {
        **store.TARGET,
        "provider": ("provider",),
        "provider_model": ("model_ref",),
    }

    tags = WordsField(required=False, help_text="Words with commas between them, for the tags of score terms.")

    class Meta:
        model = models.Target
        fields = (
            *("position", "provider_model", "provider", "model", "weight", "tags", "tool_only", "tier", "region"),
            *("max_in_flight", "overrides"),
        )
        field_classes: ClassVar = {name: kind for name, kind in _kinds(models.Target).items() if name != "tags"}
        widgets: ClassVar = {"overrides": _code(2), "position": forms.HiddenInput}
        labels: ClassVar = {"provider_model": "Model", "provider": "Provider"}
        help_texts: ClassVar = {
            "provider_model": "One of the provider models. One that is not listed there: see More.",
            "weight": "Share of the traffic, next to the other targets' weights; fractions are kept. "
            "0: only when nothing else is left. Default 1.",
            "tier": "For people and reports.",
            "region": "For people and reports.",
        }

    def plain(self) -> dict[str, Any]:
        return store.plain_target(self.instance)

    def field_at(self, path: str) -> tuple[str | None, str]:
        field, rest = super().field_at(path)
        return ("overrides", path) if field is None else (field, rest)

    def judge(self) -> None:
        if self.instance.provider_model is None and self.instance.provider is None:
            self.add_error("provider_model", "Choose a model of the catalogue, or a provider and an upstream name.")
        own = self.instance.overrides if isinstance(self.instance.overrides, dict) else {}
        for key in sorted(store.NOT_OVERRIDES.intersection(own)):
            self.add_error("overrides", f"{key}: is no field of the model")
        super().judge()

    def field_of(self, column: str) -> str:
        return "provider_model" if column == "provider" and self.instance.provider is None else column


CONDITIONS = tuple(each.name for each in fields(document.When))


class ScoreTermForm(PlacedForm):
    kind = document.ScoreTerm
    columns = store.SCORE_TERM

    require_tags = WordsField(
        required=False,
        help_text="Words with commas between them. Targets without them are out while this term applies.",
    )
    prefer_tags = WordsField(
        required=False, help_text="Words with commas between them. Each adds 0.05 to the score of a target that has it."
    )

    class Meta:
        model = models.ScoreTerm
        fields = ("position", *store.SCORE_TERM)
        field_classes: ClassVar = {
            name: kind for name, kind in _kinds(models.ScoreTerm).items() if not name.endswith("_tags")
        }
        widgets: ClassVar = {
            "expression": _code(2),
            "when": _code(2),
            "weights": _code(2),
            "position": forms.HiddenInput,
        }
        labels: ClassVar = {"when": "Applies when"}
        help_texts: ClassVar = {
            "name": "Stands in records.",
            "expression": "For example 0.6 * cost_score + 0.4 * latency_score. Scores, from 0 to 1, higher is better: "
            f"{', '.join(NAMES)}. Functions: min, max, clamp.",
            "when": 'Empty: always. Else as JSON, all must hold: {"complexity_lte": "standard", "tools": true}. Keys: '
            f"{', '.join(CONDITIONS)}.",
            "share": "Weight of this term among those that apply. 0 or more, default 1.",
        }

    def plain(self) -> dict[str, Any]:
        return store.plain_term(self.instance)


class EvaluationMetadataForm(PlacedForm):
    kind = document.EvaluationMetadata
    columns = store.EVALUATION

    tags = WordsField(required=False, help_text="Words with commas between them.")

    class Meta:
        model = models.EvaluationMetadata
        fields = ("position", *store.EVALUATION)
        field_classes: ClassVar = {
            name: kind for name, kind in _kinds(models.EvaluationMetadata).items() if name != "tags"
        }
        widgets: ClassVar = {"position": forms.HiddenInput}

    def plain(self) -> dict[str, Any]:
        return store.plain_evaluation(self.instance)


class PageFormSet(PaginationInlineFormSet):
    """The first one of a page has the whole page judged, once all parts have been read."""

    judge: Callable[[], bool] | None = None
    """Places the problems of the page; whether any stands at the main form, which Django no longer asks."""

    def clean(self) -> None:
        super().clean()
        self._place_new_rows()
        if self.judge is not None and self.judge():
            raise ValidationError("Not saved: see the fields above.")

    def _place_new_rows(self) -> None:
        """After all that have a position, in the order of the page."""
        placed = [form for form in self.forms if isinstance(form, PlacedForm)]
        last = max((form.instance.position for form in placed if form.instance.position is not None), default=-1)
        for form in placed:
            if form.instance.position is None:
                last += 1
                form.instance.position = last

    def live(self) -> list[ReadForm]:
        """The forms whose rows will be there after saving, in their order."""
        forms_left = [
            form
            for form in self.forms
            if (form.instance.pk or form.has_changed()) and not (self.can_delete and self._should_delete_form(form))
        ]
        return sorted(forms_left, key=lambda form: getattr(form.instance, "position", 0) or 0)


def judge_group(form: ReadForm, targets: PageFormSet, terms: PageFormSet, evaluations: PageFormSet) -> bool:
    """Compiles the group as the page says it, with the providers as they are stored."""
    parts = {
        "targets": targets.live(),
        "routing_policy.dynamic_score.score_terms": terms.live(),
        "routing_policy.dynamic_score.evaluation_metadata": evaluations.live(),
    }
    rows = [[part.instance for part in live] for live in parts.values()]
    plain = store.plain_group(form.instance, *rows)
    indexed = {f"{path}[{index}]": part for path, live in parts.items() for index, part in enumerate(live)}
    return _judge(form, "models", plain, indexed)


def judge_provider(form: ReadForm, catalogue: PageFormSet) -> bool:
    live = catalogue.live()
    plain = store.plain_provider(form.instance, [part.instance for part in live])
    indexed = {below("models", part.instance.name): part for part in live}
    return _judge(form, "providers", plain, indexed)


def judge_model(form: ReadForm) -> None:
    """A catalogue entry on its own page: compiled with its provider alone."""
    row: models.ProviderModel = form.instance
    others = row.provider.catalogue.exclude(pk=row.pk)
    plain = store.plain_provider(row.provider, [*others, row])
    for path, message in _compiled("providers", row.provider.name, plain):
        _place(path, message, {below("models", row.name): form}, None)


def _judge(form: ReadForm, section: str, plain: dict[str, Any], parts: Mapping[str, ReadForm]) -> bool:
    if form.errors or any(part.errors for part in parts.values()):
        return False
    for path, message in _compiled(section, form.instance.name, plain):
        _place(path, message, parts, form)
    return bool(form.errors)


def _place(path: str, message: str, parts: Mapping[str, ReadForm], rest: ReadForm | None) -> None:
    for place, part in parts.items():
        if path == place or path.startswith((f"{place}.", f"{place}[")):
            part.place(path[len(place) :].removeprefix("."), message)
            return
    if rest is not None:
        rest.place(path, message)


def _compiled(section: str, name: str, plain: dict[str, Any]) -> list[tuple[str, str]]:
    """Path below one provider or group, and what is wrong there. What is wrong elsewhere is not its fault."""
    stored = store.readable_document()
    kind: Any = document.Provider if section == "providers" else document.Group
    value, problems = read(kind, plain, below(section, name))
    if value is not None:
        providers = {**stored.providers, name: value} if section == "providers" else stored.providers
        groups = {name: value} if section == "models" else {}
        whole = document.Document(providers=providers, models=groups)
        try:
            compile_document(whole)
        except ConfigurationError as error:
            problems = list(error.problems)
        problems += key_files.problems(whole)
    above = below(section, name)
    return [
        (problem.path[len(above) :].removeprefix("."), problem.message)
        for problem in problems
        if problem.path == above or problem.path.startswith((f"{above}.", f"{above}["))
    ]
