"""HTTP as it is on the wire, on both servers: paths, methods, queries, tokens, bodies, and headers both ways."""

import json
import re
import socket
from itertools import count
from typing import Any

import pytest

from tests.e2e import wire
from tests.e2e.fleet import CHAT_KEY, MAX_REQUEST_BYTES, MESSAGES_KEY, Fleet, Served
from tests.support.processes import SimulatorProcess

pytestmark = pytest.mark.e2e

CHAT, MESSAGES, COUNT = "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"
POSTED = (CHAT, MESSAGES, COUNT)

HELLO: dict[str, Any] = {"model": "g", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}]}

_numbers = count()


def bearer(token: str) -> tuple[str, str]:
    return ("Authorization", f"Bearer {token}")


def post(served: Served, path: str, body: bytes | dict[str, Any] = HELLO, *headers: tuple[str, str]) -> wire.Reply:
    return wire.request(served.address, "POST", path, headers=[bearer(served.token), *headers], body=body)


def ask(served: Served, method: str, path: str, *headers: tuple[str, str]) -> wire.Reply:
    return wire.request(served.address, method, path, headers=headers)


# Paths and methods.


@pytest.mark.parametrize(
    ("path", "arrives"),
    [
        ("/v1/chat/completions/", CHAT),
        ("//v1/chat/completions", CHAT),
        ("/v1/messages/", MESSAGES),
        ("//v1/messages", MESSAGES),
        ("//v1/messages/", MESSAGES),
        ("/v1/messages/count_tokens/", COUNT),
    ],
)
def test_a_slash_too_many_is_served(served: Served, simulator: SimulatorProcess, path: str, arrives: str) -> None:
    reply = post(served, path)
    assert reply.status == 200, reply.body
    assert (simulator.last()["path"], json.loads(simulator.last_body())["messages"]) == (arrives, HELLO["messages"])


@pytest.mark.parametrize("headers", [(), (("anthropic-version", "2023-06-01"),)], ids=["plain", "anthropic"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/v1/messages",
        "/v1/v1/chat/completions",
        "/v1/nothing",
        "/v1",
        "/v1/",
        "//x",
        "/chat/completions",
        "/messages",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "DELETE", "OPTIONS"])
def test_no_such_path_is_json_of_the_dialect(
    served: Served, method: str, path: str, headers: tuple[tuple[str, str], ...]
) -> None:
    reply = ask(served, method, path, bearer(served.token), *headers)
    assert (reply.status, reply.header("content-type")) == (404, "application/json")
    assert reply.header("location") is None
    if method == "HEAD":
        assert reply.body == b""
        return
    error = the_error(reply, "messages" if headers else "chat")
    assert error["type"] == "not_found_error"
    assert ("too long" in error["message"]) == path.startswith("/v1/v1")
    assert ("lack its `/v1`" in error["message"]) == (not path.startswith("/v1"))


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE"])
def test_another_method_is_refused_and_the_right_one_named(served: Served, method: str, path: str) -> None:
    reply = ask(served, method, path, bearer(served.token))
    assert (reply.status, reply.header("allow"), reply.header("content-type")) == (
        405,
        "POST, OPTIONS",
        "application/json",
    )
    if method == "HEAD":
        assert reply.body == b""
    else:
        dialect = "chat" if path == CHAT else "messages"
        assert the_error(reply, dialect)["type"] == "invalid_request_error"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/g", "/healthz", "/readyz"])
def test_what_is_only_read_takes_no_other_method(served: Served, method: str, path: str) -> None:
    reply = ask(served, method, path, bearer(served.token))
    assert (reply.status, reply.header("allow")) == (405, "GET, HEAD, OPTIONS")
    assert the_error(reply, "chat")["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [*((path, "POST, OPTIONS") for path in POSTED), ("/v1/models", "GET, HEAD, OPTIONS")],
)
def test_options_needs_no_token(served: Served, path: str, allowed: str) -> None:
    reply = ask(served, "OPTIONS", path)
    assert (reply.status, reply.header("allow"), reply.body) == (204, allowed, b"")
    assert reply.header("access-control-allow-origin") is None


def test_the_root_answers_a_head_and_shows_pages_to_browsers(served: Served) -> None:
    knock = ask(served, "HEAD", "/")
    assert (knock.status, knock.body) == (200, b"")
    page = wire.exchange(served.address, wire.head("GET", "/", [("Host", "localhost")]), method="GET")
    assert (page.status, page.header("location")) == (302, "/admin/")  # the one redirect, and not of the API


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_health_and_readiness_need_no_token(served: Served, method: str) -> None:
    health, ready = ask(served, method, "/healthz"), ask(served, method, "/readyz")
    assert (health.status, ready.status) == (200, 200)
    if method == "GET":
        assert health.json == {"status": "ok"}
        assert ready.json == {"status": "ready", "revision": 1}
    else:
        assert (health.body, ready.body) == (b"", b"")


def test_models_answer_a_head_with_the_length_of_their_list(served: Served) -> None:
    listed = ask(served, "GET", "/v1/models", bearer(served.token))
    knock = ask(served, "HEAD", "/v1/models", bearer(served.token))
    assert (knock.status, knock.body) == (200, b"")
    assert knock.header("content-length") == str(len(listed.body))
    anonymous = ask(served, "HEAD", "/v1/models")
    assert (anonymous.status, anonymous.body) == (401, b"")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/models", ()),
        ("/v1/models/", ()),
        ("/v1/models?limit=1000", ()),
        ("/v1/models", (("anthropic-version", "2023-06-01"),)),
    ],
)
def test_the_models_list_serves_both_dialects(served: Served, path: str, headers: tuple[tuple[str, str], ...]) -> None:
    reply = ask(served, "GET", path, bearer(served.customer), *headers)
    assert reply.status == 200
    content = reply.json
    created = content["data"][0].pop("created")
    created_at = content["data"][0].pop("created_at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created_at)
    assert isinstance(created, int)
    assert content == {
        "object": "list",
        "data": [
            {
                "id": "g",
                "object": "model",
                "owned_by": "pilotage",
                "type": "model",
                "display_name": "g",
                "lifecycle": "active",
                "description": "",
            }
        ],
        "has_more": False,
        "first_id": "g",
        "last_id": "g",
    }


@pytest.mark.parametrize("name", ["unknown", "secret", "a%2Fb", "..%2F..%2Fetc", "%00", "g%0d%0ax:y", "%F0%9F%99%82"])
def test_an_unknown_model_is_not_found_whatever_its_name(served: Served, name: str) -> None:
    reply = ask(served, "GET", f"/v1/models/{name}", bearer(served.token))
    assert reply.status == 404
    assert the_error(reply, "chat")["code"] == "model_not_found"
    reply = ask(served, "GET", f"/v1/models/{name}", bearer(served.token), ("anthropic-version", "2023-06-01"))
    assert the_error(reply, "messages")["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("query", "arrives"),
    [
        ("beta=true", "beta=true"),
        ("x=1&beta=true&key=2", "beta=true"),
        ("beta=false", ""),
        ("beta=true2", ""),
        ("api-version=2024-01-01&key=secret", ""),
        ("", ""),
    ],
)
@pytest.mark.parametrize("path", POSTED)
def test_of_a_query_only_beta_goes_on(
    served: Served, simulator: SimulatorProcess, path: str, query: str, arrives: str
) -> None:
    assert post(served, f"{path}?{query}").status == 200
    assert simulator.last()["query"] == arrives


# Tokens.


@pytest.mark.parametrize(
    "value",
    [
        "Bearer {token}",
        "bearer {token}",
        "BEARER {token}",
        "Bearer   {token}",
        "Bearer {token} ",
    ],
)
def test_a_bearer_token_is_found_however_it_is_written(served: Served, value: str) -> None:
    reply = ask(served, "GET", "/v1/models", ("Authorization", value.format(token=served.token)))
    assert reply.status == 200, reply.body


MISSING, WRONG = "missing_api_key", "invalid_api_key"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([], MISSING),
        ([("Authorization", "")], MISSING),
        ([("Authorization", "Bearer")], MISSING),
        ([("Authorization", "Bearer ")], MISSING),
        ([("Authorization", "{token}")], MISSING),
        ([("Authorization", "Basic {token}")], MISSING),
        ([("Authorization", "Bearer{token}")], MISSING),
        ([("Authorization", "Bearer Bearer {token}")], WRONG),
        ([("Authorization", "Bearer {token},{token}")], WRONG),
        ([("Authorization", "Bearer {token}x")], WRONG),
        ([("Authorization", "Bearer sk-other")], WRONG),
        ([("Authorization", "Bearer \u00e9\u00ff\u00b2")], WRONG),
        ([("Authorization", "Bearer plt_" + "A" * 38)], WRONG),
        ([("Authorization", "Bearer " + "A" * 8000)], WRONG),
        ([("Authorization", "Bearer sk-other"), ("Authorization", "Bearer {token}")], WRONG),
        ([("x-api-key", "")], MISSING),
        ([("x-api-key", "Bearer {token}")], WRONG),
        ([("api-key", "{token}")], MISSING),
        ([("Cookie", "token={token}")], MISSING),
        ([("Proxy-Authorization", "Bearer {token}")], MISSING),
    ],
    ids=lambda value: None if isinstance(value, str) else str(next(_numbers)),
)
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_anything_else_is_no_token(
    served: Served, simulator: SimulatorProcess, path: str, headers: list[tuple[str, str]], code: str
) -> None:
    fields = [(name, value.replace("{token}", served.token)) for name, value in headers]
    reply = wire.request(served.address, "POST", f"{path}?key={served.token}", headers=fields, body=HELLO)
    assert reply.status == 401
    error = the_error(reply, "chat" if path == CHAT else "messages")
    assert error["type"] == "authentication_error"
    if path == CHAT:
        assert error["code"] == code
    assert simulator.counters()["requests"] == 0


@pytest.mark.parametrize(
    ("path", "wins"), [(CHAT, "bearer"), (MESSAGES, "x-api-key"), (COUNT, "x-api-key"), ("/v1/models", "bearer")]
)
def test_of_two_tokens_the_dialects_own_counts(served: Served, path: str, wins: str) -> None:
    def status(bearer_token: str, api_key: str) -> int:
        headers = [bearer(bearer_token), ("x-api-key", api_key)]
        if path == "/v1/models":
            return wire.request(served.address, "GET", path, headers=headers).status
        return wire.request(served.address, "POST", path, headers=headers, body=HELLO).status

    good, bad = served.token, "sk-other"
    assert {"bearer": status(good, bad), "x-api-key": status(bad, good)} == {
        "bearer": 200 if wins == "bearer" else 401,
        "x-api-key": 200 if wins == "x-api-key" else 401,
    }
    assert status(good, "") == 200


# Errors.

TOO_LARGE = b"[" + b"1," * (MAX_REQUEST_BYTES // 2) + b"1]"


def test_every_refusal_has_the_dialects_envelope(served: Served, simulator: SimulatorProcess) -> None:
    def with_stream(stream: bool, **changes: Any) -> bytes:
        return json.dumps(HELLO | {"stream": stream} | changes).encode()

    def asked(path: str, case: str, stream: bool) -> wire.Reply:
        headers, body = [bearer(served.token)], with_stream(stream)
        match case:
            case "missing token":
                headers = []
            case "wrong token":
                headers = [bearer("sk-other")]
            case "group of others":
                body = with_stream(stream, model="secret")
            case "unknown group":
                body = with_stream(stream, model="unknown")
            case "bad JSON":
                body = with_stream(stream)[:-1]
            case "no messages":
                body = json.dumps({"model": "g", "max_tokens": 64, "stream": stream}).encode()
            case "too large":
                body = TOO_LARGE
            case "compressed":
                headers = [bearer(served.token), ("Content-Encoding", "gzip")]
            case "nobody to connect to":
                body = with_stream(stream, model="nobody")
        return wire.request(served.address, "POST", path, headers=headers, body=body)

    expected = {
        "missing token": (401, "authentication_error", "missing_api_key", None),
        "wrong token": (401, "authentication_error", "invalid_api_key", None),
        "group of others": (403, "permission_error", "model_not_allowed", "model"),
        "unknown group": (404, "not_found_error", "model_not_found", "model"),
        "bad JSON": (400, "invalid_request_error", "invalid_json", None),
        "no messages": (400, "invalid_request_error", "invalid_request", "messages"),
        "too large": (413, "request_too_large", "request_too_large", None),
        "compressed": (415, "invalid_request_error", "unsupported_content_encoding", None),
        "nobody to connect to": (502, "api_error", "upstream_error", None),
    }
    for case, (status, kind, code, param) in expected.items():
        for path in POSTED:
            if path == COUNT and case == "nobody to connect to":
                continue  # the gateway's own estimate
            for stream in (False, True):
                reply = asked(path, case, stream)
                where = (case, path, stream, reply)
                assert (reply.status, reply.header("content-type")) == (status, "application/json"), where
                if path == CHAT:
                    error = the_error(reply, "chat")
                    assert error == {"type": kind, "code": code, "param": param, "message": error["message"]}, where
                else:
                    error = the_error(reply, "messages")
                    assert error == {"type": kind, "message": error["message"]}, where
                    assert reply.header("request-id") == reply.id, where
    assert simulator.counters()["requests"] == 0


def the_error(reply: wire.Reply, dialect: str) -> dict[str, Any]:
    """The error inside the dialect's envelope, which has nothing else, and tells no secret."""
    content = reply.json
    for secret in (CHAT_KEY, MESSAGES_KEY, "Traceback", "plt_", "127.0.0.1", "sk-other"):
        assert secret not in reply.body.decode()
    error: dict[str, Any] = content.pop("error")
    if dialect == "messages":
        assert content == {"type": "error", "request_id": reply.id}
    else:
        assert content == {}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


def test_a_body_that_is_declared_too_large_is_refused_before_it_is_sent(fleet: Fleet) -> None:
    """On uvicorn; Daphne reads whole bodies before it asks the application."""
    served = fleet.served("uvicorn")
    fields = [("Host", "x"), ("Content-Length", str(MAX_REQUEST_BYTES + 1)), bearer(served.token)]
    with wire.connected(served.address) as connection:
        connection.sendall(wire.head("POST", MESSAGES, fields))
        reply = wire.read_reply(connection)
    assert (reply.status, the_error(reply, "messages")["type"]) == (413, "request_too_large")


# Bodies.


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 65_536])
def test_a_chunked_body_is_put_together(served: Served, simulator: SimulatorProcess, size: int) -> None:
    body = json.dumps(HELLO).encode()
    fields = [("Host", "x"), ("Transfer-Encoding", "chunked"), bearer(served.token)]
    reply = wire.exchange(served.address, wire.head("POST", CHAT, fields) + chunked(body, size))
    assert reply.status == 200, reply.body
    arrived = dict(simulator.last()["headers"])
    assert ("transfer-encoding" in arrived, arrived["content-length"]) == (False, str(len(simulator.last_body())))
    assert simulator.last_body() == body.replace(b'"model": "g"', b'"model": "m"')


def test_a_chunked_body_over_the_bound_is_refused(served: Served, simulator: SimulatorProcess) -> None:
    fields = [("Host", "x"), ("Transfer-Encoding", "chunked"), bearer(served.token)]
    reply = wire.exchange(served.address, wire.head("POST", CHAT, fields) + chunked(TOO_LARGE, 65_536))
    assert (reply.status, the_error(reply, "chat")["code"]) == (413, "request_too_large")
    assert simulator.counters()["requests"] == 0


ODD = (
    b'{ "foo" : {"a":1, "b":[ ]},\t"model":"g" ,"temperature":1.0,"top_p":0.10, "seed":12345678901234567890,\n'
    b'"messages":[{"role":"user","content":[{"type":"text","text":"h\\u00e9 \xc3\xa9 \\ud83d\\ude42"},'
    b'{"type":"novel_part","value":1e2}]}], "max_tokens":64, "zzz":null }'
)


@pytest.mark.parametrize("path", POSTED)
def test_a_body_arrives_byte_for_byte_but_for_the_models_name(
    served: Served, simulator: SimulatorProcess, path: str
) -> None:
    reply = post(served, path, ODD)
    assert reply.status == 200, reply.body
    assert simulator.last_body() == ODD.replace(b'"model":"g"', b'"model":"m"')


def test_a_large_body_arrives_byte_for_byte_too(served: Served, simulator: SimulatorProcess) -> None:
    large = ODD.replace(b'"zzz":null', b'"zzz":"%s"' % (b"x" * (2 << 20)))
    reply = post(served, MESSAGES, large)
    assert reply.status == 200, reply.body
    assert simulator.last_body() == large.replace(b'"model":"g"', b'"model":"m"')


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-1e400"])
@pytest.mark.parametrize("place", [b'"temperature":%s', b'"tools":[{"input_schema":{"minimum":[0,%s]}}]'])
@pytest.mark.parametrize("path", POSTED)
def test_a_number_that_is_none_is_refused(
    served: Served, simulator: SimulatorProcess, path: str, place: bytes, number: bytes
) -> None:
    body = json.dumps(HELLO).encode()[:-1] + b"," + place % number + b"}"
    reply = post(served, path, body)
    assert reply.status == 400
    error = the_error(reply, "chat" if path == CHAT else "messages")
    assert error["type"] == "invalid_request_error"
    assert simulator.counters()["requests"] == 0


# Headers.


def test_what_is_of_one_connection_or_secret_does_not_go_on(served: Served, simulator: SimulatorProcess) -> None:
    reply = post(
        served,
        MESSAGES,
        HELLO,
        ("Connection", "keep-alive, x-secret"),
        ("x-secret", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Authorization", "Basic Zm9v"),
        ("Proxy-Connection", "keep-alive"),
        ("TE", "trailers"),
        ("Trailer", "x-late"),
        ("Cookie", "session=1"),
        ("x-goog-api-key", "k"),
        ("api-key", "k"),
        ("OpenAI-Organization", "org"),
        ("Accept-Encoding", "gzip, br"),
        ("X-Pilotage-Debug", "1"),
        ("anthropic-beta", "a-2025,b-2025"),
        ("anthropic-beta", "c-2025"),
        ("x-kept", "yes"),
    )
    assert reply.status == 200, reply.body
    last = simulator.last()
    assert sorted((name, value) for name, value in last["headers"]) == [
        ("accept-encoding", "identity"),
        ("anthropic-beta", "a-2025,b-2025"),
        ("anthropic-beta", "c-2025"),
        ("anthropic-version", "2023-06-01"),
        ("content-length", str(len(last["body"]))),
        ("content-type", "application/json"),
        ("host", simulator.origin.removeprefix("http://")),
        ("x-api-key", MESSAGES_KEY),
        ("x-kept", "yes"),
    ]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_an_answer_has_our_fields_and_none_of_the_providers(served: Served, path: str, stream: bool) -> None:
    reply = wire.request(
        served.address,
        "POST",
        path,
        headers=[bearer(served.customer), ("Accept-Encoding", "gzip")],
        body=HELLO | {"stream": stream},
    )
    assert reply.status == 200
    fields = dict(reply.headers)
    assert len(fields) == len(reply.headers)
    assert re.fullmatch("req_[0-9a-f]{32}", fields["x-request-id"])
    expected = {"x-request-id", "content-type"}
    if path == MESSAGES:
        expected |= {"request-id"}
    if stream:
        expected |= {"cache-control", "x-accel-buffering", "transfer-encoding"}
        assert fields["content-type"] == "text/event-stream; charset=utf-8"
        assert (fields["cache-control"], fields["x-accel-buffering"]) == ("no-cache", "no")
    else:
        expected |= {"content-length"}
        assert fields["content-type"] == "application/json"
    assert set(fields) - {"date"} == expected  # which Daphne does not send
    if path == MESSAGES:
        assert fields["request-id"] == fields["x-request-id"]


def test_who_may_see_the_routing_sees_it(served: Served) -> None:
    reply = post(served, CHAT)
    shown = {name: value for name, value in reply.headers if name.startswith("x-pilotage-")}
    assert shown == {
        "x-pilotage-target": "chat/m",
        "x-pilotage-mode": "configured",
        "x-pilotage-revision": "1",
        "x-pilotage-attempts": "1",
    }


def test_every_answer_has_an_id_of_its_own(served: Served) -> None:
    replies = [
        ask(served, method, path, *headers)
        for method in ("GET", "HEAD", "POST", "OPTIONS", "DELETE")
        for path in ("/v1/models", "/v1/models/g", "/v1/nothing", "/healthz", "/readyz", *POSTED)
        for headers in ((), (bearer(served.token),))
    ]
    replies += [ask(served, "HEAD", "/"), post(served, CHAT), post(served, MESSAGES, b"{")]
    assert len({reply.id for reply in replies}) == len(replies)
    assert {reply.status // 100 for reply in replies} == {2, 4}  # never a redirect, never a fault


def test_a_root_path_from_a_client_changes_nothing(served: Served, simulator: SimulatorProcess) -> None:
    reply = post(served, CHAT, HELLO, ("Daphne-Root-Path", "/evil"))
    if served.server == "daphne":
        assert (reply.status, reply.json["error"]["code"]) == (400, "root_path_refused")
        assert simulator.counters()["requests"] == 0
    else:  # uvicorn gives the field no meaning
        assert (reply.status, simulator.last()["path"]) == (200, CHAT)


def test_a_connection_serves_one_request_after_another(served: Served) -> None:
    body = json.dumps(HELLO).encode()
    fields = [("Host", "x"), ("Content-Length", str(len(body)))]
    with socket.create_connection(served.address, 20) as connection:
        seen = []
        for token in (served.token, "sk-other", served.token):
            connection.sendall(wire.head("POST", CHAT, [*fields, bearer(token)]) + body)
            seen.append(wire.read_reply(connection).status)
    assert seen == [200, 401, 200]


def test_a_stream_comes_event_by_event(served: Served, simulator: SimulatorProcess) -> None:
    simulator.set(latency_ms=0, tokens_per_second=10, output_tokens=6)
    body = json.dumps(HELLO | {"stream": True}).encode()
    fields = [("Host", "x"), ("Content-Length", str(len(body))), bearer(served.token)]
    pieces: list[bytes] = []
    with wire.connected(served.address) as connection:
        connection.sendall(wire.head("POST", CHAT, fields) + body)
        while b"data: [DONE]" not in b"".join(pieces[-2:]):
            piece = connection.recv(65_536)
            assert piece
            pieces.append(piece)
    words = [len(re.findall(rb'"content":"[^"]', piece)) for piece in pieces]
    assert (sum(words), max(words)) == (6, 1)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_broken_stream_ends_in_an_error_event_and_on_uvicorn_without_an_end(
    served: Served, simulator: SimulatorProcess, path: str
) -> None:
    simulator.set(cut_rate=1)
    reply = post(served, path, HELLO | {"stream": True})
    last = reply.body.rstrip().splitlines()[-1]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert (reply.status, error["type"]) == (200, "upstream_error" if path == CHAT else "api_error")
    assert b"[DONE]" not in reply.body
    assert b"message_stop" not in reply.body
    assert reply.whole == (served.server == "daphne")
