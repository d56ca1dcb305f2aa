"""The form of a token: `plt_`, 32 random base62 characters (190 bits), and 6 that hold the CRC-32 of all before them.

The checksum lets a secret scanner, and `find`, tell a token from any other text without a look-up.
"""

import hashlib
import zlib
from functools import lru_cache

PREFIX = "plt_"
RANDOM_CHARACTERS = 32
LENGTH = len(PREFIX) + RANDOM_CHARACTERS + 6
SHOWN_CHARACTERS = 12
"""What is kept in the clear for people: the prefix and 8 of the random characters (47 of 190 bits)."""

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

BLOCK_BYTES = hashlib.sha256().block_size

_BODY = LENGTH - 6
_PREFIX = PREFIX.encode()
_PAIRS = {(a + b).encode(): i * 62 + j for i, a in enumerate(ALPHABET) for j, b in enumerate(ALPHABET)}
_SPELLED = {number: pair.decode() for pair, number in _PAIRS.items()}


def with_checksum(random: str) -> str:
    """The whole token of 32 base62 characters."""
    body = PREFIX + random
    rest, low = divmod(zlib.crc32(body.encode()), 3844)
    high, middle = divmod(rest, 3844)
    return body + _SPELLED[high] + _SPELLED[middle] + _SPELLED[low]


def well_formed(secret: bytes) -> bool:
    """Whether the length, the prefix and the checksum are a token's."""
    if len(secret) != LENGTH or not secret.startswith(_PREFIX):
        return False
    try:
        high, middle, low = (
            _PAIRS[secret[_BODY : _BODY + 2]],
            _PAIRS[secret[_BODY + 2 : _BODY + 4]],
            _PAIRS[secret[-2:]],
        )
    except KeyError:
        return False
    return (high * 3844 + middle) * 3844 + low == zlib.crc32(secret[:_BODY])


def digest_of(secret: bytes, pepper: bytes) -> bytes:
    """32 bytes, HMAC-SHA-256: what is stored and looked up."""
    inner, outer = _keyed(pepper)
    inner, outer = inner.copy(), outer.copy()
    inner.update(secret)
    outer.update(inner.digest())
    return outer.digest()


@lru_cache(maxsize=8)
def _keyed(pepper: bytes) -> "tuple[hashlib._Hash, hashlib._Hash]":
    """RFC 2104's two hashes with the key's blocks in them: a quarter of the time that `hmac` takes, on every request."""
    block = hashlib.sha256(pepper).digest() if len(pepper) > BLOCK_BYTES else pepper
    block = block.ljust(BLOCK_BYTES, b"\0")
    return hashlib.sha256(bytes(byte ^ 0x36 for byte in block)), hashlib.sha256(bytes(byte ^ 0x5C for byte in block))
