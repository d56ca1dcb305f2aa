"""`manage.py createtoken`."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from accounts import groups
from accounts.core.secret import well_formed
from accounts.models import Caller, Token

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def known_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_source", lambda: ["chat", "code", "vision"])


def createtoken(*arguments: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("createtoken", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_token_stands_alone_on_standard_output() -> None:
    Caller.objects.create(name="team", allow=["chat", "code"])
    out, err = createtoken("team", "--groups", "code, chat", "--expires", "30d")
    assert out.endswith("\n")
    assert well_formed(out.strip().encode())
    assert err == ""
    row = Token.objects.get()
    assert (row.shown, row.groups, row.created_by.endswith(" (createtoken)")) == (out[:12], ["chat", "code"], True)
    assert row.expires_at is not None
    assert timedelta(days=29, hours=23) < row.expires_at - timezone.now() <= timedelta(days=30)


def test_an_inactive_caller_is_mentioned_on_standard_error() -> None:
    Caller.objects.create(name="team", active=False)
    out, err = createtoken("team")
    assert well_formed(out.strip().encode())
    assert err == "Caller 'team' is not active: the token is refused until it is.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["taem"], "there is no caller 'taem'; did you mean 'team'?"),
        (["zzz"], "there is no caller 'zzz'"),
        (["team", "--groups", "caht"], "--groups: there is no group 'caht'; did you mean 'chat'?"),
        (["team", "--groups", "vision"], "--groups: caller 'team' may not use 'vision'"),
        (
            ["team", "--groups", ","],
            "--groups: name at least one group, or leave it out for all that the caller may use",
        ),
        (
            ["team", "--expires", "soon"],
            "--expires: 'soon' is not a length of time; expected a whole number and m, h, d or w, from 1m to 5200w: 30d",
        ),
    ],
)
def test_a_mistake_is_named_and_nothing_is_issued(arguments: list[str], message: str) -> None:
    Caller.objects.create(name="team", allow=["chat"])
    with pytest.raises(CommandError) as error:
        createtoken(*arguments)
    assert (str(error.value), Token.objects.count()) == (message, 0)


def test_without_any_caller_it_says_so() -> None:
    with pytest.raises(CommandError, match="there is no caller 'team'; there are none yet"):
        createtoken("team")
