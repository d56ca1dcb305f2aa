"""Forms of providers, models and groups. What a form says is judged by the reader of the configuration file, and a whole
page by the compiler, so that the admin and a file are told the same; each problem stands beside its field."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.forms.models import construct_instance
from unfold.forms import PaginationInlineFormSet
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminPasswordWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from routing import models, store
from routing.core import document
from routing.core.compile import compile_document
from routing.core.errors import ConfigurationError
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
        widgets: ClassVar = {"headers": UnfoldAdminTextareaWidget(attrs={"rows": 3})}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
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

    input_modalities = ChoicesField(label="Reads", choices=models.MODALITIES, required=False)
    output_modalities = ChoicesField(label="Writes", choices=models.MODALITIES, required=False)
    unsupported_request_features = ChoicesField(
        label="Does not understand", choices=models.REQUEST_FEATURES, required=False
    )

    class Meta:
        model = models.ProviderModel
        fields = ("provider", "name", *store.PROVIDER_MODEL)
        widgets: ClassVar = {
            name: UnfoldAdminTextareaWidget(attrs={"rows": 3}) for name in ("tool_support", "reasoning", "validation")
        }

    def plain(self) -> dict[str, Any]:
        return store.plain_model(self.instance)


class ModelGroupForm(ReadForm):
    kind = document.Group
    columns = store.MODEL_GROUP

    prompt_features = ChoicesField(label="Features to look for", choices=models.FEATURES, required=False)

    class Meta:
        model = models.ModelGroup
        fields = ("name", *store.MODEL_GROUP)

    def plain(self) -> dict[str, Any]:
        return store.plain_group(self.instance, (), (), ())


class TargetForm(ReadForm):
    kind = document.Target
    columns: ClassVar[store.Columns] = {
        **store.TARGET,
        "provider": ("provider",),
        "provider_model": ("model_ref",),
    }

    tags = WordsField(required=False)

    class Meta:
        model = models.Target
        fields = (
            *("position", "provider_model", "provider", "model", "weight", "tags", "tool_only", "tier", "region"),
            *("max_in_flight", "overrides"),
        )
        widgets: ClassVar = {"overrides": UnfoldAdminTextareaWidget(attrs={"rows": 2})}

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


class ScoreTermForm(ReadForm):
    kind = document.ScoreTerm
    columns = store.SCORE_TERM

    require_tags = WordsField(required=False, help_text="Targets without them are out while this term applies.")
    prefer_tags = WordsField(required=False, help_text="Each adds 0.05 to the target's score.")

    class Meta:
        model = models.ScoreTerm
        fields = ("position", *store.SCORE_TERM)
        widgets: ClassVar = {
            "expression": UnfoldAdminTextareaWidget(attrs={"rows": 2}),
            "when": UnfoldAdminTextareaWidget(attrs={"rows": 2}),
            "weights": UnfoldAdminTextareaWidget(attrs={"rows": 2}),
        }

    def plain(self) -> dict[str, Any]:
        return store.plain_term(self.instance)


class EvaluationMetadataForm(ReadForm):
    kind = document.EvaluationMetadata
    columns = store.EVALUATION

    tags = WordsField(required=False)

    class Meta:
        model = models.EvaluationMetadata
        fields = ("position", *store.EVALUATION)

    def plain(self) -> dict[str, Any]:
        return store.plain_evaluation(self.instance)


class PageFormSet(PaginationInlineFormSet):
    """The first one of a page has the whole page judged, once all parts have been read."""

    judge: Callable[[], bool] | None = None
    """Places the problems of the page; whether any stands at the main form, which Django no longer asks."""

    def clean(self) -> None:
        super().clean()
        if self.judge is not None and self.judge():
            raise ValidationError("Not saved: see the fields above.")

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
        try:
            compile_document(document.Document(providers=providers, models=groups))
        except ConfigurationError as error:
            problems = list(error.problems)
    above = below(section, name)
    return [
        (problem.path[len(above) :].removeprefix("."), problem.message)
        for problem in problems
        if problem.path == above or problem.path.startswith((f"{above}.", f"{above}["))
    ]
