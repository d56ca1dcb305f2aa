"""Legal holds in the admin: made in somebody's name, released, never deleted."""

from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from reports.rollup_models import LegalHold

pytestmark = pytest.mark.django_db
FORM = {
    "caller": "shop", "project": "", "group": "", "request_id": "", "started_from_0": "", "started_from_1": "",
    "started_before_0": "", "started_before_1": "", "reason": "audit 7", "released_at_0": "", "released_at_1": "",
}  # fmt: skip


@pytest.fixture
def client() -> Client:
    user = User.objects.create_user("vera", password="a long password", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="reports", content_type__model="legalhold")
    )
    made = Client()
    made.force_login(user)
    return made


def test_a_hold_is_made_in_the_name_of_who_made_it(client):
    answer = client.post(reverse("admin:reports_legalhold_add"), FORM)
    assert answer.status_code == 302, answer.content.decode()
    assert list(LegalHold.objects.values_list("caller", "reason", "created_by", "released_at")) == [
        ("shop", "audit 7", "vera", None)
    ]


def test_a_hold_on_nothing_is_refused_with_words(client):
    answer = client.post(reverse("admin:reports_legalhold_add"), {**FORM, "caller": ""})
    assert "Say what is to be kept" in answer.content.decode()
    assert not LegalHold.objects.exists()


def test_a_hold_is_released_by_the_action_and_cannot_be_deleted(client):
    hold = LegalHold.objects.create(caller="shop", reason="audit 7", created_at=datetime(2026, 3, 1, tzinfo=UTC))
    page = reverse("admin:reports_legalhold_changelist")
    assert "caller shop" in client.get(page).content.decode()
    client.post(page, {"action": "release", "_selected_action": [hold.pk]})
    hold.refresh_from_db()
    assert hold.released_at is not None
    assert client.post(reverse("admin:reports_legalhold_delete", args=[hold.pk]), {"post": "yes"}).status_code == 403
    assert LegalHold.objects.exists()
