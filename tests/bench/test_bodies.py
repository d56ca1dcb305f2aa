import json
from typing import Any

import pytest

from bench.bodies import BODIES, CONVERSATION, MODEL, Body, content


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.name)
def test_a_body_is_as_large_as_it_says_and_the_same_every_time(body: Body) -> None:
    request = content(body)
    assert len(json.dumps(request)) == pytest.approx(body.size, rel=0.05)
    assert content(body) == request
    assert described(request) == (MODEL, body.tools, body.stream, f"{body.script}{CONVERSATION}000000000000 ")


def described(request: dict[str, Any]) -> tuple[str, int, bool, str]:
    """The model, the tools, whether it streams, and how the first prompt begins."""
    prompt = request["messages"][1]["content"]
    opening = prompt[: prompt.index(CONVERSATION) + len(CONVERSATION) + 13]
    return request["model"], len(request.get("tools", ())), request.get("stream", False), opening
