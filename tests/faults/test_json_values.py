"""Request bodies of every kind that RFC 8259 allows or forbids: passed on byte for byte but for the model's name, or refused
before any provider hears of them."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.stories import CHAT, MESSAGES, SIDES, Side, serving
from tests.support.asgi import Reply
from tests.support.loops import in_loop, run
from tests.support.relays import Bench, in_order, relaying, target_on
from tests.support.scripted import ScriptedUpstream, scripted

MESSAGE = b'[{"role":"user","content":"hi"}]'


def body(more: bytes = b"", *, model: bytes = b'"g"') -> bytes:
    """`more` follows the last member."""
    return b'{"model":' + model + b',"max_tokens":64,"messages":' + MESSAGE + more + b"}"


PASSES: dict[str, bytes] = {
    "nothing more": body(),
    "spaces, tabs and line ends": b' \t\r\n{ \t"model"\r\n:\t"g"\n,\r"max_tokens" : 64 , "messages" :\n'
    + MESSAGE
    + b" }\r\n\t ",
    "the model last": b'{"max_tokens":64,"messages":' + MESSAGE + b',"model":"g"}',
    "a long name": body(b',"' + b"k" * 10_000 + b'":1'),
    "an empty name": body(b',"":{"":[]}'),
    "escapes in strings": body(rb',"a":"\"\\\/\b\f\n\r\t\u00e9\u0000\u2028"'),
    "a pair of surrogates": body(rb',"a":"\ud83d\ude00"'),
    "capitals in escapes": body(rb',"a":"\uD83D\uDE00\u00C9"'),
    "characters beyond the first plane": body(',"a":"🙂𝄞"'.encode()),
    "separators, DEL and a mark inside a string": body(',"a":"\u2028\u2029\x7f\ufeff\uffff\U0010ffff"'.encode()),
    "whole numbers of any length": body(b',"seed":' + b"9" * 400 + b',"n":-' + b"1" * 400),
    "minus zero": body(b',"a":[-0,-0.0,0e0,-0E-0]'),
    "fractions and exponents": body(b',"a":[1.0,1e2,1E+2,1.5e-300,0.1,123456789.000000001]'),
    "a fraction of many digits": body(b',"a":0.' + b"3" * 400),
    "a number that is nearly too large": body(b',"a":1.7976931348623157e308'),
    "a number that is nearly zero": body(b',"a":[5e-324,1e-400]'),
    "literals": body(b',"a":[true,false,null]'),
    "empty containers": body(b',"a":[[],{},[[]],[{}]]'),
    "nesting": body(b',"a":' + b"[" * 100 + b"]" * 100),
    "nesting of objects": body(b',"a":' + b'{"a":' * 100 + b"1" + b"}" * 100),
    "a name twice": body(b',"a":1,"a":2'),
    "the word model elsewhere": body(rb',"metadata":{"model":"g","x":"\"model\":\"g\""}'),
    "the word model as a value": body(b',"a":"model","b":["model"]'),
    "names that only end so": body(b',"xmodel":"g","model ":"g"," model":"g"'),
}


def replaced(sent: bytes) -> bytes:
    """What the provider should get where the model is spelled plainly and once at the top."""
    at = {b'{"model":"g"': 9, b'"model"\r\n:\t"g"': 11, b',"model":"g"}': 9}
    for start, offset in at.items():
        found = sent.find(start)
        if found >= 0:
            place = found + offset
            return sent[:place] + b'"vendor/x"' + sent[place + 3 :]
    raise AssertionError(sent)


async def posted(side: Side, sent: bytes, *, pieces: int = 1) -> tuple[Reply, ScriptedUpstream, Bench]:
    async with (
        scripted(serving(side, stream=False)) as upstream,
        relaying(in_order(target_on(upstream, "a", dialect=side.dialect, model="vendor/x"))) as bench,
    ):
        return await bench.call(side.path, sent, pieces=pieces).answered(), upstream, bench


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("what", PASSES)
@in_loop
async def test_what_json_allows_arrives_byte_for_byte(what, side):
    reply, upstream, bench = await posted(SIDES[side], PASSES[what])
    assert (reply.status, bench.end.outcome) == (200, "success")
    assert upstream.requests[0].body == replaced(PASSES[what])
    assert bench.end.request_bytes == len(PASSES[what])


MODELS: dict[str, tuple[bytes, bytes]] = {
    "an escaped name": (rb'{"\u006dodel":"g",', rb""),
    "escapes in every letter": (rb'{"\u006d\u006F\u0064\u0065\u006c":"g",', rb""),
    "the model twice": (b'{"model":"h","model":"g",', b""),
    "the same model twice": (b'{"model":"g",', b',"model":"g"'),
    "the model twice, once escaped": (rb'{"model":"h","mod\u0065l":"g",', rb""),
    "another one between": (rb'{"mod\u0065l":"h",', b',"model":"g"'),
    "the model as an escape": (rb'{"model":"\u0067",', b""),
    "other types before": (b'{"model":{"model":["g"]},', b',"model":"g"'),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("what", MODELS)
@in_loop
async def test_every_parser_behind_us_sees_the_one_model_that_was_decided_on(what, large, side):
    start, end = MODELS[what]
    rest = b'"max_tokens":64,"messages":' + MESSAGE
    filler = b',"filler":"' + b"x" * 20_000 + b'"' if large else b""
    reply, upstream, _ = await posted(SIDES[side], start + rest + filler + end + b"}")
    assert reply.status == 200
    pairs = json.loads(upstream.requests[0].body, object_pairs_hook=lambda pairs: pairs)
    assert [value for name, value in pairs if name == "model"] == ["vendor/x"]
    assert b"\\u006" not in upstream.requests[0].body
    assert [name for name, _ in pairs if name != "model"] == ["max_tokens", "messages", *(["filler"] if large else [])]


REFUSED: dict[str, bytes] = {
    "nothing": b"",
    "white space": b" \r\n",
    "a byte order mark": b"\xef\xbb\xbf" + body(),
    "UTF-16": body().decode().encode("utf-16"),
    "UTF-16 without a mark": body().decode().encode("utf-16-le"),
    "UTF-32": body().decode().encode("utf-32"),
    "more behind it": body() + b"x",
    "another object behind it": body() + body(),
    "a null byte behind it": body() + b"\0",
    "a comma behind the last member": body(b","),
    "a comma behind the last item": body(b',"a":[1,]'),
    "a comma too many": body(b",,"),
    "no comma": body(b' "a":1'),
    "no colon": body(b',"a" 1'),
    "a name without quotes": body(b",a:1"),
    "a number as a name": body(b",1:1"),
    "single quotes": body(b",'a':1"),
    "a comment": body(b"/* a */"),
    "a comment to the end of the line": body(b"// a\n"),
    "cut in a string": body()[:-20],
    "cut before the end": body()[:-1],
    "NaN": body(b',"a":NaN'),
    "Infinity": body(b',"a":Infinity'),
    "-Infinity": body(b',"a":-Infinity'),
    "1e400": body(b',"a":1e400'),
    "-1e400 in depth": body(b',"a":{"b":[{"c":-1e400}]}'),
    "1e999999999999": body(b',"a":1e999999999999'),
    "a zero in front": body(b',"a":01'),
    "a plus": body(b',"a":+1'),
    "a fraction without a whole": body(b',"a":.5'),
    "a whole without its fraction": body(b',"a":1.'),
    "an exponent without digits": body(b',"a":1e'),
    "hexadecimal": body(b',"a":0x10'),
    "an underscore": body(b',"a":1_000'),
    "only a minus": body(b',"a":-'),
    "a number of 5,000 digits": body(b',"a":' + b"1" * 5_000),
    "other literals": body(b',"a":True'),
    "undefined": body(b',"a":undefined'),
    "a raw line end in a string": body(b',"a":"b\nc"'),
    "a raw null byte in a string": body(b',"a":"b\0c"'),
    "a raw tab in a string": body(b',"a":"b\tc"'),
    "a raw control character in a name": body(b',"a\x01":1'),
    "an unknown escape": body(rb',"a":"\x41"'),
    "half an escape": body(rb',"a":"\u12"'),
    "an escape that is no number": body(rb',"a":"\u12g4"'),
    "a lone high surrogate": body(rb',"a":"\ud800"'),
    "a lone low surrogate": body(rb',"a":"\udc00"'),
    "surrogates in the wrong order": body(rb',"a":"\ude00\ud83d"'),
    "a lone surrogate in a name": body(rb',"\ud800":1'),
    "bad UTF-8": body(b',"a":"\xff"'),
    "bad UTF-8 in a name": body(b',"\xff":1'),
    "cut UTF-8": body(b',"a":"\xf0\x9f\x99"'),
    "overlong UTF-8": body(b',"a":"\xc0\xaf"'),
    "a surrogate in UTF-8": body(b',"a":"\xed\xa0\x80"'),
    "beyond Unicode": body(b',"a":"\xf4\x90\x80\x80"'),
    "Latin-1": body(b',"a":"caf\xe9"'),
    "a vertical tab as white space": body(b',\x0b"a":1'),
    "a form feed as white space": body(b',\x0c"a":1'),
    "a no-break space as white space": body(b',\xc2\xa0"a":1'),
    "nesting without end": body(b',"a":' + b"[" * 100_000),
    "nesting too deep": body(b',"a":' + b"[" * 100_000 + b"]" * 100_000),
    "objects nested too deep": body(b',"a":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "YAML": b"model: g\nmessages: []\n",
    "a form": b"model=g&messages=[]",
    "HTML": b"<html>",
}
NO_REQUESTS: dict[str, tuple[bytes, str | None]] = {
    "null": (b"null", None),
    "an array": (b"[" + body() + b"]", None),
    "a string": (b'"' + b"x" * 50 + b'"', None),
    "a number": (b"12345678901234567890", None),
    "an empty object": (b"{}", "model"),
    "a model that is null": (body(model=b"null"), "model"),
    "a model that is empty": (body(model=b'""'), "model"),
    "a model that is a list": (body(model=b'["g"]'), "model"),
    "a model that is a number": (body(model=b"1"), "model"),
    "a last model that is none": (b'{"model":"g","model":null,"max_tokens":1,"messages":' + MESSAGE + b"}", "model"),
    "messages that are null": (b'{"model":"g","max_tokens":1,"messages":null}', "messages"),
    "messages that are a string": (b'{"model":"g","max_tokens":1,"messages":"hi"}', "messages"),
    "no message": (b'{"model":"g","max_tokens":1,"messages":[]}', "messages"),
    "a message that is a string": (b'{"model":"g","max_tokens":1,"messages":["hi"]}', "messages"),
    "a stream that is a string": (body(b',"stream":"true"'), "stream"),
    "a stream that is a number": (body(b',"stream":1'), "stream"),
    "a cap that is a string": (body(b',"max_tokens":"1"'), "max_tokens"),
    "a cap with a fraction": (body(b',"max_tokens":1.0'), "max_tokens"),
    "a cap that is negative": (body(b',"max_tokens":-1'), "max_tokens"),
    "a cap that is true": (body(b',"max_tokens":true'), "max_tokens"),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("what", REFUSED)
@in_loop
async def test_what_json_forbids_is_refused_and_goes_nowhere(what, side):
    for large in (False, True):
        sent = REFUSED[what]
        if large:  # read in steps
            sent = sent.replace(b'"content":"hi"', b'"content":"' + b"x" * 1_200_000 + b'"')
            if len(sent) < 1_048_576:
                continue
        reply, upstream, bench = await posted(SIDES[side], sent)
        assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")
        assert (bench.end.error_code, bench.end.attempts) == ("invalid_json", [])
        assert upstream.connections == []
        assert len(reply.body) < 1_000


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("what", NO_REQUESTS)
@in_loop
async def test_json_that_is_no_request_is_refused_by_its_field(what, side):
    sent, param = NO_REQUESTS[what]
    reply, upstream, bench = await posted(SIDES[side], sent)
    error = reply.json()["error"]
    assert (reply.status, error["type"], bench.end.error_code) == (400, "invalid_request_error", "invalid_request")
    assert error.get("param", param) == param
    assert upstream.connections == []


ODD_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
KNOWN = ["tools", "tool_choice", "response_format", "stop", "temperature", "reasoning_effort", "thinking", "system",
         "metadata", "user", "n", "logprobs", "prompt_cache_key", "modalities", "audio"]  # fmt: skip


@given(extra=st.dictionaries(st.sampled_from(KNOWN) | st.text(max_size=5), ODD_VALUES, max_size=5), content=ODD_VALUES)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_values_of_any_kind_in_any_place_are_served_or_refused_and_never_a_defect(extra: dict[str, Any], content: Any):
    async def main() -> None:
        for side in (CHAT, MESSAGES):
            request = {**extra, **side.request, "messages": [{"role": "user", "content": content}, {"role": content}]}
            reply, upstream, bench = await posted(side, json.dumps(request).encode())
            assert bench.end.outcome in ("success", "refused")
            assert bench.end.error_code != "internal_error"
            if reply.status == 200:
                assert json.loads(upstream.requests[0].body) == {**request, "model": "vendor/x"}

    run(main())
