from collections import Counter
from typing import Any

import pytest

from routing.core.affinity import Pins, conversation_key
from routing.core.catalog import AffinityPolicy, Group, ScorePolicy
from routing.core.decision import NOBODY, Decision
from tests.support.documents import some_group


def key_of(**fields: Any) -> bytes | None:
    given = {
        "caller": "ada",
        "group": "chat",
        "dialect": "openai-chat",
        "explicit_id": None,
        "prefix": b"hello",
        "prompt_cache_key": None,
    }
    return conversation_key(**{**given, **fields})


def group_with(**affinity: Any) -> Group:
    return some_group(policy=ScorePolicy(affinity=AffinityPolicy(**affinity)))


def pinning(key: bytes, target: str = "paris", *, affinity: Any = "affinity_miss") -> Decision:
    return Decision(
        strategy="dynamic_score",
        mode="score",
        revision=1,
        candidates=NOBODY,
        affinity=affinity,
        conversation_key=key,
        pin=None if affinity == "affinity_hit" else target,
    )


def found(pins: Pins, group: Group, key: bytes, *, now: float) -> tuple[str, str | None]:
    looked = pins.look(group, key, now=now)
    return looked.found, looked.target


# The key.


def test_a_key_is_a_digest_of_32_bytes_and_the_same_each_time() -> None:
    key = key_of()
    assert key is not None
    assert len(key) == 32
    assert key_of() == key


@pytest.mark.parametrize(
    "other",
    [{"caller": "bob"}, {"group": "code"}, {"dialect": "anthropic"}, {"prefix": b"hullo"}, {"prompt_cache_key": "k"}],
    ids=str,
)
def test_caller_group_dialect_prefix_and_cache_key_each_tell_conversations_apart(other: dict[str, Any]) -> None:
    assert key_of(**other) != key_of()


def test_an_explicit_id_replaces_the_prefix_and_stays_with_its_caller() -> None:
    key = key_of(explicit_id="s-1")
    assert key_of(explicit_id="s-1", prefix=b"other", prompt_cache_key="k") == key
    assert key_of(explicit_id="s-1", prefix=None) == key
    assert key_of(explicit_id="s-2") != key
    assert key_of(explicit_id="s-1", caller="bob") != key


def test_an_id_and_a_prefix_of_the_same_bytes_are_two_conversations() -> None:
    assert key_of(explicit_id="hello") != key_of(prefix=b"hello")


@pytest.mark.parametrize("bad", ["", "x" * 257, "a\nb", "\x00", "\ud800"])
def test_an_id_that_is_empty_too_long_or_not_printable_is_as_if_absent(bad: str) -> None:
    assert key_of(explicit_id=bad) == key_of()
    assert key_of(explicit_id="x" * 256) != key_of()


def test_without_an_id_and_a_prefix_there_is_no_conversation() -> None:
    assert key_of(prefix=None) is None
    assert key_of(prefix=b"") is None
    assert key_of(prefix=[]) is None
    assert key_of(prefix=None, prompt_cache_key="constant") is None


def test_a_prefix_may_come_in_parts_whose_borders_count() -> None:
    assert key_of(prefix=[b"hello"]) == key_of(prefix=b"hello")
    assert key_of(prefix=iter([b"hel", b"lo"])) == key_of(prefix=[b"hel", b"lo"])
    assert key_of(prefix=[b"hel", b"lo"]) != key_of(prefix=[b"he", b"llo"])


def test_names_that_run_together_are_not_confused() -> None:
    assert key_of(caller="ab", group="c") != key_of(caller="a", group="bc")


# The pins.


def test_a_pin_lives_from_its_creation_for_its_time_and_is_not_extended_by_hits() -> None:
    group, pins = group_with(ttl_s=600.0), Pins()
    pins.remember(group, pinning(b"k"), caller="ada", now=0.0)
    pins.remember(group, pinning(b"k", affinity="affinity_hit"), caller="ada", now=599.0)
    assert found(pins, group, b"k", now=599.9) == ("pinned", "paris")
    assert found(pins, group, b"k", now=600.0) == ("expired", None)


def test_a_sliding_pin_lives_from_its_last_use() -> None:
    group, pins = group_with(ttl_s=600.0, sliding=True), Pins()
    pins.remember(group, pinning(b"k"), caller="ada", now=0.0)
    for now in (290.0, 580.0, 870.0, 1160.0):
        assert found(pins, group, b"k", now=now) == ("pinned", "paris")
        pins.remember(group, pinning(b"k", affinity="affinity_hit"), caller="ada", now=now)
    assert found(pins, group, b"k", now=1761.0) == ("expired", None)


def test_replacing_a_pin_starts_its_time_anew() -> None:
    group, pins = group_with(ttl_s=10.0), Pins()
    pins.remember(group, pinning(b"k"), caller="ada", now=0.0)
    pins.remember(group, pinning(b"k", "rome", affinity="affinity_ineligible"), caller="ada", now=9.0)
    assert found(pins, group, b"k", now=18.9) == ("pinned", "rome")
    assert found(pins, group, b"k", now=19.0) == ("expired", None)


def test_each_group_has_its_own_map() -> None:
    pins, chat, code = Pins(), some_group(name="chat"), some_group(name="code")
    pins.remember(chat, pinning(b"k"), caller="ada", now=0.0)
    assert found(pins, code, b"k", now=0.0) == ("miss", None)
    pins.keep_only({"code"})
    assert found(pins, chat, b"k", now=0.0) == ("miss", None)


def test_a_full_map_drops_the_oldest_pin_of_the_caller_that_holds_most() -> None:
    group, pins = group_with(max_entries=4), Pins()
    for now, (caller, key) in enumerate([("ada", b"a1"), ("mallory", b"m1"), ("mallory", b"m2"), ("mallory", b"m3")]):
        pins.remember(group, pinning(key), caller=caller, now=float(now))
    pins.remember(group, pinning(b"b1"), caller="bob", now=4.0)
    states = {key: found(pins, group, key, now=5.0)[0] for key in (b"a1", b"m1", b"m2", b"m3", b"b1", b"never")}
    assert states == {
        b"a1": "pinned",
        b"m1": "evicted",
        b"m2": "pinned",
        b"m3": "pinned",
        b"b1": "pinned",
        b"never": "miss",
    }


def test_among_equal_callers_the_oldest_pin_goes() -> None:
    group, pins = group_with(max_entries=3), Pins()
    for now, caller in enumerate("abcd"):
        pins.remember(group, pinning(caller.encode()), caller=caller, now=float(now))
    assert [found(pins, group, key, now=5.0)[0] for key in (b"a", b"b", b"c", b"d")] == [
        "evicted",
        "pinned",
        "pinned",
        "pinned",
    ]


def test_a_hit_does_not_save_a_pin_from_being_the_oldest() -> None:
    group, pins = group_with(max_entries=2), Pins()
    pins.remember(group, pinning(b"1"), caller="ada", now=0.0)
    pins.remember(group, pinning(b"2"), caller="ada", now=1.0)
    pins.remember(group, pinning(b"1", affinity="affinity_hit"), caller="ada", now=2.0)
    pins.remember(group, pinning(b"3"), caller="ada", now=3.0)
    assert found(pins, group, b"1", now=3.0) == ("evicted", None)


def test_an_expired_pin_makes_room_before_a_living_one() -> None:
    group, pins = group_with(max_entries=2, ttl_s=10.0), Pins()
    pins.remember(group, pinning(b"old"), caller="bob", now=0.0)
    pins.remember(group, pinning(b"new"), caller="ada", now=9.0)
    pins.remember(group, pinning(b"more"), caller="ada", now=11.0)
    states = [found(pins, group, key, now=11.0)[0] for key in (b"old", b"new", b"more")]
    assert states == ["expired", "pinned", "pinned"]


def test_a_pin_that_was_evicted_and_made_again_is_pinned() -> None:
    group, pins = group_with(max_entries=1), Pins()
    for key in (b"1", b"2", b"1"):
        pins.remember(group, pinning(key), caller="ada", now=0.0)
    assert found(pins, group, b"1", now=0.0) == ("pinned", "paris")
    assert found(pins, group, b"2", now=0.0) == ("evicted", None)


def test_a_smaller_bound_takes_hold_write_by_write() -> None:
    pins, wide, narrow = Pins(), group_with(max_entries=100), group_with(max_entries=10)
    for number in range(100):
        pins.remember(wide, pinning(b"%d" % number), caller="ada", now=0.0)
    for number in range(200, 300):
        pins.remember(narrow, pinning(b"%d" % number), caller="ada", now=0.0)
    assert pins.size("chat") == 10


def test_the_map_and_its_memory_of_the_gone_stay_bounded() -> None:
    group, pins = group_with(max_entries=50, ttl_s=100.0), Pins()
    for number in range(5_000):
        pins.remember(group, pinning(b"%d" % number), caller=f"c{number % 7}", now=float(number % 900))
    held = pins._groups["chat"]
    assert (len(held.by_age), len(held.gone)) == (50, 50)
    counts = Counter(pin.caller for pin in held.by_age.values())
    assert {caller: len(keys) for caller, keys in held.by_caller.items()} == counts
    assert held.most == max(counts.values())
    assert {n: set(callers) for n, callers in held.callers_holding.items()} == {
        n: {caller for caller, count in counts.items() if count == n} for n in set(counts.values())
    }


def test_nothing_is_remembered_for_a_decision_without_a_conversation_or_a_pin() -> None:
    group, pins = group_with(), Pins()
    pins.remember(
        group, Decision(strategy="static", mode="configured", revision=1, candidates=NOBODY), caller="a", now=0.0
    )
    pins.remember(group, pinning(b"k", affinity="affinity_hit"), caller="a", now=0.0)
    assert pins.size("chat") == 0
