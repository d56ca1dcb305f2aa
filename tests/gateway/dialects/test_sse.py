"""The splitter of server-sent events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.sse import RawEvent, Splitter, with_data


def split(*pieces: bytes, limit: int = 1_000) -> list[RawEvent]:
    splitter = Splitter(limit)
    return [event for piece in pieces for event in splitter.feed(piece)]


def data_of(*pieces: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, data) for _, name, data in split(*pieces)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", [(b"", b"a")]),
        (b"data:a\n\n", [(b"", b"a")]),
        (b"data:  a\n\n", [(b"", b" a")]),
        (b"data\n\n", [(b"", b"")]),
        (b'data: {"a":\ndata: 1}\n\n', [(b"", b'{"a":\n1}')]),
        (b"event: ping\ndata: {}\n\n", [(b"ping", b"{}")]),
        (b"event:ping\ndata:{}\n\n", [(b"ping", b"{}")]),
        (b"event: a\nevent: b\ndata: x\n\n", [(b"b", b"x")]),
        (b"id: 7\nretry: 10\ndata: x\nother: y\n\n", [(b"", b"x")]),
        (b"data: x\nevent: late\n\n", [(b"late", b"x")]),
        (b": keepalive\n\n", [(b"", b"")]),
        (b": keepalive\ndata: x\n\n", [(b"", b"x")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\r\rdata: b\r\r", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\r\n\ndata: b\n\r\ndata: c\n\n", [(b"", b"a"), (b"", b"b"), (b"", b"c")]),
        (b"data: a\n\rdata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"\xef\xbb\xbfdata: a\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [(b"", b"a"), (b"", b"")]),
        (b"data: a\n\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\n", []),
    ],
)
def test_fields_are_read_as_the_standard_says(stream: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    assert data_of(stream) == expected


def test_every_byte_of_whole_events_is_kept() -> None:
    stream = b": c\n\n\ndata: a\r\n\r\nevent: x\ndata:b\n\n\n\nid: 1\n\n"
    assert b"".join(raw for raw, _, _ in split(stream)) == stream


def test_a_byte_order_mark_at_the_start_is_no_part_of_an_event() -> None:
    stream = b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n"
    events = [(b"data: a\n\n", b"", b"a"), (b"\xef\xbb\xbfdata: b\n\n", b"", b"")]
    assert split(stream) == events
    assert split(*[stream[at : at + 1] for at in range(len(stream))]) == events


LINES = st.sampled_from(
    [
        b"data: a",
        b"data:b",
        b"data",
        b": c",
        b"event: e",
        b"id: 1",
        b"\xef\xbb\xbfdata: z",
        "data: é日🙂".encode(),
        b"x",
    ]
)
ENDS = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=12).map(lambda lines: b"".join(a + b for a, b in lines))


@given(STREAMS, st.data())
def test_any_split_of_the_input_gives_the_same_events(stream: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert split(*pieces) == split(stream)
    assert split(*[stream[at : at + 1] for at in range(len(stream))]) == split(stream)


@pytest.mark.parametrize("pieces", [[b"data: 12345\n\n"], [b"data: 123", b"45\n\n"], [b"data: 12345"]])
def test_an_event_beyond_the_limit_stops_the_reading(pieces: list[bytes]) -> None:
    splitter = Splitter(10)
    assert [event for piece in pieces for event in splitter.feed(piece)] == []
    assert splitter.overflow
    assert splitter.feed(b"data: a\n\n") == []


def test_an_event_at_the_limit_passes_and_good_events_before_a_long_one_are_given() -> None:
    splitter = Splitter(10)
    assert splitter.feed(b"data: 12\n\ndata: 123456\n\n") == [(b"data: 12\n\n", b"", b"12")]
    assert splitter.overflow


def test_the_end_of_the_stream_completes_what_is_left() -> None:
    for left, raw in [
        (b"data: a", b"data: a\n\n"),
        (b"data: a\n", b"data: a\n\n"),
        (b"data: a\r\n", b"data: a\r\n\n"),
        (b"data: a\r", b"data: a\r\n\n"),
        (b"data: a\n\r", b"data: a\n\r"),
    ]:
        splitter = Splitter(100)
        assert splitter.feed(left) == []
        assert splitter.pending
        last = splitter.flush()
        assert last is not None
        assert last[2] == b"a"
        assert last[0] == raw
        assert Splitter(100).feed(last[0] + b"data: b\n\n")[1][2] == b"b"


def test_nothing_is_pending_between_events() -> None:
    splitter = Splitter(100)
    splitter.feed(b"data: a\n\n\n")
    assert not splitter.pending
    assert splitter.flush() is None


def test_an_events_data_can_be_changed_and_its_other_fields_stay() -> None:
    assert with_data(b"event: e\nid: 1\ndata: a\n\n", bytes.upper) == b"event: e\nid: 1\ndata: A\n\n"
    assert with_data(b"data:a\r\ndata:b\r\n\r\n", bytes.upper) == b"data: A\ndata: B\n\n"
    assert with_data(b": note\n\n", bytes.upper) == b": note\n\n"
    assert with_data(b"data:A\n\n", bytes.upper) == b"data:A\n\n"
