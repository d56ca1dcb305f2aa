"""What a provider's answer means, by whose fault, and how long it asks to wait."""

import time

import pytest

from gateway.relay.attempt import RetryBudget, failure_of, failure_of_status, retry_after
from gateway.upstream.errors import AtCapacity, ConnectionLost, ConnectTimeout, ResponseTooLarge

NOON = 1_764_417_600.0
"""2025-11-29 12:00:00 UTC."""


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([(b"retry-after", b"60")], 60.0),
        ([(b"retry-after", b"0")], 0.0),
        ([(b"retry-after", b"1.5")], 1.5),
        ([(b"retry-after", b"Sat, 29 Nov 2025 12:00:30 GMT")], 30.0),
        ([(b"retry-after", b"Sat, 29 Nov 2025 11:00:00 GMT")], 0.0),
        ([(b"retry-after", b"Saturday, 29-Nov-25 12:00:30 GMT")], 30.0),
        ([(b"retry-after", b"Sat Nov 29 12:00:30 2025")], 30.0),
        ([(b"retry-after", b"Sat, 29 Nov 2025 12:00:30 -0000")], 30.0),
        ([(b"retry-after", b"Sat, 29 Nov 2025 13:00:30 GMT"), (b"date", b"Sat, 29 Nov 2025 13:00:00 GMT")], 30.0),
        ([(b"date", b"Sat, 29 Nov 2025 11:00:00 GMT"), (b"retry-after", b"Sat, 29 Nov 2025 11:00:30 GMT")], 30.0),
        ([(b"date", b"soon"), (b"retry-after", b"Sat, 29 Nov 2025 12:00:30 GMT")], 30.0),
        ([(b"date", b"Sat, 29 Nov 2025 11:00:00 GMT"), (b"retry-after", b"5")], 5.0),
        ([(b"retry-after", b"abc"), (b"retry-after", b"5")], 5.0),
        ([(b"retry-after", b"5, 6")], None),
        ([(b"retry-after", b"+5")], None),
        ([(b"retry-after-ms", b"abc"), (b"retry-after", b"5")], 5.0),
        ([(b"retry-after-ms", b"1500")], 1.5),
        ([(b"retry-after", b"7"), (b"retry-after-ms", b"1500")], 1.5),
        ([(b"retry-after", b"-3")], None),
        ([(b"retry-after", b"abc")], None),
        ([(b"retry-after", b"999999")], 999999.0),
        ([(b"retry-after", b"9" * 40)], None),
        ([(b"retry-after", b"\xff\xfe")], None),
        ([(b"retry-after", b"1e9")], None),
        ([], None),
    ],
)
def test_a_wait_is_read_in_every_form_and_nonsense_is_none(headers, seconds, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")  # a date without a zone is no local time
    time.tzset()
    try:
        assert retry_after(headers, wall=NOON) == seconds
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("status", "body", "outcome", "code"),
    [
        (400, b'{"error":{}}', "caller_fault", "upstream_bad_request"),
        (413, b"{}", "caller_fault", "upstream_bad_request"),
        (422, b"{}", "caller_fault", "upstream_bad_request"),
        (401, b"{}", "denied", "upstream_denied"),
        (403, b"{}", "denied", "upstream_denied"),
        (404, b"{}", "denied", "upstream_denied"),
        (408, b"{}", "timeout", "upstream_timeout"),
        (429, b"", "throttled", "upstream_rate_limited"),
        (529, b"", "throttled", "upstream_overloaded"),
        (402, b"", "throttled", "upstream_rate_limited"),
        (403, b'{"error":{"code":"insufficient_quota"}}', "throttled", "upstream_rate_limited"),
        (400, b'{"error":{"message":"insufficient_quota"}}', "caller_fault", "upstream_bad_request"),
        (500, b"oops", "server_error", "upstream_server_error"),
        (503, b"", "server_error", "upstream_server_error"),
        (302, b"", "server_error", "upstream_error"),
        (204, b"", "server_error", "upstream_error"),
    ],
)
def test_a_status_is_booked_on_whoever_caused_it(status, body, outcome, code):
    failure = failure_of_status(status, [], body, wall=NOON)
    assert (failure.outcome, failure.code, failure.status) == (outcome, code, status)


def test_only_json_of_a_callers_own_fault_is_passed_on():
    assert failure_of_status(400, [], b'{"error":{"message":"no"}}', wall=NOON).body == b'{"error":{"message":"no"}}'
    assert failure_of_status(400, [], b"<html>", wall=NOON).body is None
    assert failure_of_status(500, [], b'{"error":{"message":"key sk-1 at http://10.0.0.1"}}', wall=NOON).body is None


@pytest.mark.parametrize(
    ("error", "outcome", "sent"),
    [
        (AtCapacity("full"), "refused_here", False),
        (ConnectTimeout("http://10.0.0.1"), "timeout", True),
        (ConnectionLost("http://10.0.0.1"), "server_error", True),
        (ResponseTooLarge("http://10.0.0.1"), "server_error", True),
    ],
)
def test_a_failed_connection_tells_the_client_no_address(error, outcome, sent):
    failure = failure_of(error)
    assert (failure.outcome, failure.sent) == (outcome, sent)
    assert "10.0.0.1" not in failure.message


def test_a_retry_budget_starts_full_and_fills_with_time_or_with_requests_whichever_is_more():
    budget = RetryBudget(now=0.0)
    taken = [budget.take(per_second=3, share=0.2, now=0.0) for _ in range(31)]
    assert taken == [True] * 30 + [False]
    assert [budget.take(per_second=3, share=0.2, now=1.0) for _ in range(4)] == [True, True, True, False]
    for _ in range(50):
        budget.request()
    assert [budget.take(per_second=3, share=0.2, now=1.0) for _ in range(11)] == [True] * 10 + [False]
