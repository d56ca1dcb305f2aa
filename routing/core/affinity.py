"""Which conversation a request belongs to, and which target a conversation is pinned to."""

import hashlib
from collections import OrderedDict
from collections.abc import Container, Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Literal

import msgspec

from routing.core.catalog import Group, TargetId
from routing.core.decision import Decision

EXPLICIT_ID_MAX = 256
"""Characters of an id that a client gives its conversation; a longer one is not an id."""

JOINED_BYTES = 16_384
"""A beginning up to this size is hashed at once; a longer one is not copied for it."""

STEPS_PER_WRITE = 2
"""Pins dropped at most by one write, expired ones and evicted ones each: a write takes the same time whatever the size."""


def conversation_key(
    *,
    caller: str,
    group: str,
    dialect: str,
    explicit_id: str | None,
    prefix: Iterable[bytes] | bytes | None,
    prompt_cache_key: str | None,
) -> bytes | None:
    """SHA-256 that tells conversations apart, or `None` when the request shows none.

    An explicit id of 1 to 256 printable characters replaces the prefix; any other is as if absent. `prefix` is the
    normalised system context and first message, whole or in parts. `prompt_cache_key` is mixed into a prefix and never
    stands alone: some applications send one constant.
    """
    digest = _begun(caller, group, dialect).copy()
    if explicit_id is not None and 0 < len(explicit_id) <= EXPLICIT_ID_MAX and explicit_id.isprintable():
        digest.update(b"I")
        _add(digest, explicit_id.encode())
        return digest.digest()
    if prefix is None:
        return None
    pieces = [b"P"]
    size = 0
    for part in (prefix,) if isinstance(prefix, bytes) else prefix:
        pieces += (len(part).to_bytes(8), part)
        size += len(part)
    if not size:
        return None
    if size <= JOINED_BYTES:
        digest.update(b"".join(pieces))
    else:
        for piece in pieces:
            digest.update(piece)
    if prompt_cache_key:
        digest.update(b"K")
        _add(digest, prompt_cache_key.encode("utf-8", "surrogatepass"))
    return digest.digest()


@lru_cache(maxsize=1024)
def _begun(caller: str, group: str, dialect: str) -> "hashlib._Hash":
    """What all conversations of a caller with a group have in common. Not to be changed: `copy`."""
    digest = sha256(b"pilotage conversation 1")
    for word in (caller, group, dialect):
        _add(digest, word.encode("utf-8", "surrogatepass"))
    return digest


def _add(digest: "hashlib._Hash", part: bytes) -> None:
    digest.update(len(part).to_bytes(8))
    digest.update(part)


class Pin(msgspec.Struct, kw_only=True, gc=False):
    target: TargetId
    caller: str
    expires: float
    """Monotonic second from which it holds no more."""


class Looked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the pins know of a conversation."""

    found: Literal["pinned", "miss", "expired", "evicted"]
    target: TargetId | None = None
    """Given when `pinned`."""


MISS = Looked(found="miss")
EXPIRED = Looked(found="expired")
EVICTED = Looked(found="evicted")


class Pins:
    """The pins of one process, one bounded map per group.

    A pin lives for the policy's TTL from its creation or replacement; with `sliding` from its last use. A full map
    drops the oldest pin of the caller that holds most, so that a caller that floods a group only loses its own.
    """

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, _GroupPins] = {}

    def look(self, group: Group, key: bytes, *, now: float) -> Looked:
        """Changes nothing."""
        pins = self._groups.get(group.name)
        if pins is None:
            return MISS
        pin = pins.by_age.get(key)
        if pin is None:
            return pins.gone.get(key, MISS)
        if pin.expires <= now:
            return EXPIRED
        return Looked(found="pinned", target=pin.target)

    def remember(self, group: Group, decision: Decision, *, caller: str, now: float) -> None:
        """Does what the decision says: pins its conversation, or, where pins slide, extends the pin that was hit."""
        key = decision.conversation_key
        if key is None:
            return
        policy = group.score.affinity
        if decision.pin is not None:
            pins = self._groups.get(group.name)
            if pins is None:
                pins = self._groups[group.name] = _GroupPins()
            pins.put(
                key,
                Pin(target=decision.pin, caller=caller, expires=now + policy.ttl_s),
                bound=policy.max_entries,
                now=now,
            )
        elif policy.sliding and decision.affinity == "affinity_hit" and group.name in self._groups:
            self._groups[group.name].extend(key, expires=now + policy.ttl_s)

    def keep_only(self, groups: Container[str]) -> None:
        """Forgets the pins of all other groups: for when a new configuration has dropped some."""
        for name in [name for name in self._groups if name not in groups]:
            del self._groups[name]

    def size(self, group: str) -> int:
        """Pins held for a group, expired ones that are still in the map included."""
        pins = self._groups.get(group)
        return 0 if pins is None else len(pins.by_age)


class _GroupPins:
    """Every write is O(1): ages by insertion order, callers by the number of pins that they hold."""

    __slots__ = ("by_age", "by_caller", "callers_holding", "gone", "most")

    def __init__(self) -> None:
        self.by_age: OrderedDict[bytes, Pin] = OrderedDict()
        self.by_caller: dict[str, OrderedDict[bytes, None]] = {}
        self.callers_holding: dict[int, OrderedDict[str, None]] = {}
        """Callers by their number of pins; among equals the one that has held that number longest comes first."""
        self.most = 0
        """The largest number of pins that one caller holds."""
        self.gone: OrderedDict[bytes, Looked] = OrderedDict()
        """Why keys are no longer here, the newest of them, as many as pins may be."""

    def put(self, key: bytes, pin: Pin, *, bound: int, now: float) -> None:
        self._drop_expired(now, bound)
        if key in self.by_age:
            self._remove(key)
        else:
            self.gone.pop(key, None)
            for _ in range(STEPS_PER_WRITE):
                if len(self.by_age) < bound:
                    break
                self._evict(bound)
        self.by_age[key] = pin
        held = self.by_caller.get(pin.caller)
        if held is None:
            held = self.by_caller[pin.caller] = OrderedDict()
        held[key] = None
        self._recount(pin.caller, len(held) - 1, len(held))

    def extend(self, key: bytes, *, expires: float) -> None:
        pin = self.by_age.get(key)
        if pin is None:
            return
        pin.expires = expires
        self.by_age.move_to_end(key)
        self.by_caller[pin.caller].move_to_end(key)

    def _drop_expired(self, now: float, bound: int) -> None:
        for _ in range(STEPS_PER_WRITE):
            oldest = next(iter(self.by_age), None)
            if oldest is None or self.by_age[oldest].expires > now:
                return
            self._bury(oldest, EXPIRED, bound=bound)
            self._remove(oldest)

    def _evict(self, bound: int) -> None:
        caller = next(iter(self.callers_holding[self.most]))
        key = next(iter(self.by_caller[caller]))
        self._bury(key, EVICTED, bound=bound)
        self._remove(key)

    def _bury(self, key: bytes, why: Looked, *, bound: int) -> None:
        self.gone[key] = why
        for _ in range(STEPS_PER_WRITE):
            if len(self.gone) <= bound:
                break
            self.gone.popitem(last=False)

    def _remove(self, key: bytes) -> None:
        pin = self.by_age.pop(key)
        held = self.by_caller[pin.caller]
        del held[key]
        self._recount(pin.caller, len(held) + 1, len(held))
        if not held:
            del self.by_caller[pin.caller]

    def _recount(self, caller: str, before: int, after: int) -> None:
        if before:
            callers = self.callers_holding[before]
            del callers[caller]
            if not callers:
                del self.callers_holding[before]
        if after:
            self.callers_holding.setdefault(after, OrderedDict())[caller] = None
        if after > self.most or (before == self.most and before not in self.callers_holding):
            self.most = after
