"""When a token was last used: written without a stir, and shown in the admin."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from accounts import tokens
from accounts.models import Caller, DirectoryVersion, Token

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def a_token() -> Token:
    caller, _ = Caller.objects.get_or_create(name="team")
    return tokens.issue(caller)[0]


def test_a_use_moves_forward_only_and_no_process_loads_the_directory_for_it():
    first, second = a_token(), a_token()
    version = DirectoryVersion.objects.get().number
    tokens.note_uses({first.shown: NOON, "plt_unknown0": NOON})
    tokens.note_uses({first.shown: NOON - timedelta(hours=1)})
    assert dict(Token.objects.values_list("shown", "last_used_at")) == {first.shown: NOON, second.shown: None}
    tokens.note_uses({first.shown: NOON + timedelta(minutes=1)})
    assert Token.objects.get(pk=first.pk).last_used_at == NOON + timedelta(minutes=1)
    assert DirectoryVersion.objects.get().number == version


def test_the_list_and_the_page_of_tokens_show_it(admin_client: Client):
    used, unused = a_token(), a_token()
    tokens.note_uses({used.shown: NOON})
    listed = admin_client.get(reverse("admin:accounts_token_changelist")).content.decode()
    assert "Last used" in listed
    assert "2026-11-30 12:00" in listed
    assert "never" in listed
    for token, shown in ((used, "2026-11-30 12:00"), (unused, "never")):
        page = admin_client.get(reverse("admin:accounts_token_change", args=[token.pk])).content.decode()
        assert "Last used" in page
        assert shown in page
