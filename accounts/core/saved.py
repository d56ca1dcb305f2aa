"""A Directory as bytes: the copy that a process starts from while the database is away. Digests only, no secret."""

import msgspec

from accounts.core.directory import Caller, Directory, Token


class _Token(msgspec.Struct, frozen=True, omit_defaults=True):
    caller: str
    shown: str
    digest: bytes
    expires_at: float | None = None
    revoked: bool = False
    groups: frozenset[str] | None = None


class _Saved(msgspec.Struct, frozen=True):
    version: int
    callers: list[Caller]
    tokens: list[_Token]


_decoder = msgspec.json.Decoder(_Saved)
_encoder = msgspec.json.Encoder(order="deterministic")


def to_json(directory: Directory) -> bytes:
    callers = {token.caller.name: token.caller for token in directory.tokens.values()}
    tokens = [
        _Token(
            caller=token.caller.name,
            shown=token.shown,
            digest=token.digest,
            expires_at=token.expires_at,
            revoked=token.revoked,
            groups=token.groups,
        )
        for token in directory.tokens.values()
    ]
    return _encoder.encode(_Saved(version=directory.version, callers=list(callers.values()), tokens=tokens))


def from_json(text: bytes) -> Directory:
    """Raises `ValueError` for anything that `to_json` did not write."""
    saved = _decoder.decode(text)
    callers = {caller.name: caller for caller in saved.callers}
    tokens: dict[bytes, Token] = {}
    for token in saved.tokens:
        caller = callers.get(token.caller)
        if caller is None:
            raise ValueError(f"token {token.shown} is of no caller")
        tokens[token.digest] = Token(
            caller=caller,
            shown=token.shown,
            digest=token.digest,
            expires_at=token.expires_at,
            revoked=token.revoked,
            groups=token.groups,
        )
    return Directory(version=saved.version, tokens=tokens)
