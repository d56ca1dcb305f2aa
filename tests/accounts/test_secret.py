"""The form of tokens."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from accounts.core.secret import ALPHABET, digest_of, well_formed, with_checksum

randoms = st.text(ALPHABET, min_size=32, max_size=32)


def test_a_token_ends_in_six_base62_digits_of_the_crc_of_all_before_them() -> None:
    assert zlib.crc32(b"plt_0123456789ABCDEFGHIJKLMNOPQRSTUV") == 1398755193
    assert ((((1 * 62 + 32) * 62 + 41) * 62 + 2) * 62 + 7) * 62 + 39 == 1398755193  # digits 1 W f 2 7 d
    assert with_checksum("0123456789ABCDEFGHIJKLMNOPQRSTUV") == "plt_0123456789ABCDEFGHIJKLMNOPQRSTUV1Wf27d"


@given(randoms)
def test_every_token_is_well_formed(random: str) -> None:
    secret = with_checksum(random)
    assert (len(secret), secret[:4], well_formed(secret.encode())) == (42, "plt_", True)


@given(randoms, st.integers(0, 41), st.integers(1, 255))
def test_no_token_with_one_byte_changed_is(random: str, position: int, change: int) -> None:
    secret = bytearray(with_checksum(random).encode())
    secret[position] ^= change
    assert not well_formed(bytes(secret))


@given(st.binary(max_size=60))
def test_no_other_bytes_are(text: bytes) -> None:
    assert not well_formed(text)


def test_the_digest_is_hmac_sha256_of_the_whole_token() -> None:
    # RFC 4231, test case 2
    assert digest_of(b"what do ya want for nothing?", b"Jefe").hex() == (
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    )
    assert digest_of(b"token", b"one pepper") != digest_of(b"token", b"another")
