"""The copy of the Directory on disk."""

import pytest

from accounts.core import saved
from accounts.core.directory import Caller, Directory, Token


def test_a_directory_comes_back_as_it_was() -> None:
    team = Caller(name="team", project="p", environment="prod", allow=frozenset({"b", "a"}), tags=frozenset({"t"}))
    gone = Caller(name="gone", active=False, see_routing=True)
    rows = [
        Token(caller=team, shown="plt_aaaaaaaa", digest=b"\x00" * 32),
        Token(caller=team, shown="plt_bbbbbbbb", digest=b"\xff" * 32, expires_at=12.5, groups=frozenset({"a"})),
        Token(caller=gone, shown="plt_cccccccc", digest=b"\x01" * 32, revoked=True, groups=frozenset()),
    ]
    directory = Directory(version=7, tokens={row.digest: row for row in rows})
    assert saved.from_json(saved.to_json(directory)) == directory


def test_tokens_of_one_caller_share_it() -> None:
    team = Caller(name="team")
    rows = [Token(caller=team, shown="plt_aaaaaaaa", digest=bytes([i]) * 32) for i in range(2)]
    back = saved.from_json(saved.to_json(Directory(version=1, tokens={row.digest: row for row in rows})))
    assert len({id(token.caller) for token in back.tokens.values()}) == 1


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"\x00", b'{"version":1,"callers":[],"tokens":[{"caller":"x","shown":"","digest":""}]}'],
)
def test_anything_else_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        saved.from_json(text)
