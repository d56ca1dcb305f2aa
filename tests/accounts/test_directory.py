"""Who a presented token is."""

import random
import time

import pytest

from accounts.core.directory import Caller, Directory, Token, find
from accounts.core.errors import Unauthenticated
from accounts.core.secret import ALPHABET, digest_of, with_checksum

PEPPER = b"p" * 32
SECRET = with_checksum("a" * 32)
NOW = 1_000_000.0


def directory_with(**fields: object) -> Directory:
    active = fields.pop("active", True)
    digest = digest_of(SECRET.encode(), PEPPER)
    token = Token(caller=Caller(name="team", active=bool(active)), shown=SECRET[:12], digest=digest, **fields)  # type: ignore[arg-type]
    return Directory(version=1, tokens={digest: token})


def reason(directory: Directory, secret: bytes | str, now: float = NOW) -> str:
    try:
        return find(directory, secret, PEPPER, now).caller.name
    except Unauthenticated as error:
        return error.reason


@pytest.mark.parametrize("secret", [SECRET, SECRET.encode()])
def test_a_good_token_is_its_row_as_text_and_as_bytes(secret: str | bytes) -> None:
    directory = directory_with()
    assert find(directory, secret, PEPPER, NOW) is next(iter(directory.tokens.values()))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"revoked": True}, "revoked"), ({"active": False}, "inactive"), ({"revoked": True, "active": False}, "revoked")],
)
def test_a_token_that_is_no_longer_good_says_why(fields: dict[str, object], expected: str) -> None:
    assert reason(directory_with(**fields), SECRET) == expected


def test_a_token_expires_at_its_second() -> None:
    directory = directory_with(expires_at=NOW)
    assert reason(directory, SECRET, NOW - 0.001) == "team"
    assert reason(directory, SECRET, NOW) == "expired"


def test_a_token_of_another_pepper_or_of_nobody_is_unknown() -> None:
    directory = directory_with()
    assert reason(directory, with_checksum("b" * 32)) == "unknown"
    with pytest.raises(Unauthenticated, match="unknown"):
        find(directory, SECRET, b"q" * 32, NOW)


def test_ten_thousand_odd_values_open_nothing() -> None:
    directory = directory_with()
    chance = random.Random(5)
    pieces = ["", SECRET[:-1], SECRET + "a", SECRET.upper(), "Bearer " + SECRET, "\x00" * 42, "ä" * 42, "\ud800" * 42]
    odd: list[bytes | str] = [
        *pieces,
        "x" * 5_000_000,
        b"\xff" * 42,
        SECRET.encode("utf-16"),
        SECRET.replace("plt_", "PLT_"),
    ]
    while len(odd) < 10_000:
        size = chance.choice([0, 1, 41, 42, 42, 42, 43, 200])
        odd.append(
            chance.randbytes(size)
            if chance.random() < 0.3
            else "plt_" + "".join(chance.choices(ALPHABET + "é \n\x7f", k=max(0, size - 4)))
        )
    assert {reason(directory, value) for value in odd} == {"malformed"}


def test_a_look_up_costs_microseconds() -> None:
    directory, secret = directory_with(), SECRET.encode()
    rounds = []
    for _ in range(20):
        begun = time.process_time_ns()
        for _ in range(500):
            find(directory, secret, PEPPER, NOW)
        rounds.append((time.process_time_ns() - begun) / 500_000)
    assert min(rounds) < 10  # about 2.5 on an idle machine


@pytest.mark.parametrize(
    ("allow", "groups", "expected"),
    [
        ({"chat"}, None, True),
        ({"*"}, None, True),
        ({"*"}, {"chat"}, True),
        ({"*"}, {"other"}, False),
        ({"other"}, {"chat"}, False),
        (set(), None, False),
    ],
)
def test_a_token_may_use_what_both_it_and_its_caller_may(
    allow: set[str], groups: set[str] | None, expected: bool
) -> None:
    token = Token(
        caller=Caller(name="team", allow=frozenset(allow)),
        shown="plt_aaaaaaaa",
        digest=b"",
        groups=None if groups is None else frozenset(groups),
    )
    assert token.may_use("chat") is expected
