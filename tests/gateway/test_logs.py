"""Log lines."""

import json
import logging
import sys

from gateway.logs import JsonLines


def test_a_line_is_one_json_object_with_the_fields_that_were_given() -> None:
    record = logging.LogRecord("pilotage.x", logging.WARNING, "f.py", 1, "odd: %s\nline", ("é",), None)
    record.created = 0.25
    record.revision, record.what = 7, {1, 2}  # as `extra` sets them
    text = JsonLines().format(record)
    assert "\n" not in text
    assert json.loads(text) == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "warning",
        "logger": "pilotage.x",
        "message": "odd: é\nline",
        "revision": 7,
        "what": "{1, 2}",
    }


def test_an_exception_is_a_field_of_its_line() -> None:
    try:
        raise ZeroDivisionError("why")
    except ZeroDivisionError:
        record = logging.LogRecord("x", logging.ERROR, "f.py", 1, "failed", None, sys.exc_info())
    line = json.loads(JsonLines().format(record))
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ZeroDivisionError: why")
