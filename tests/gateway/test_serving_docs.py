"""What the servers refuse and the simulator can do is documented."""

from pathlib import Path

import msgspec

from gateway.http_protocol import REFUSALS
from gateway.simulator import Behaviour, Counters
from reports.core import record

DOCS = Path(__file__).resolve().parents[2] / "docs"


def missing(page: str, words: set[str]) -> set[str]:
    text = (DOCS / page).read_text()
    return {word for word in words if f"`{word}`" not in text}


def test_every_refusal_of_the_server_is_documented() -> None:
    statuses = {f"{status} `{code}`" for code, (status, _) in REFUSALS.items()} | {"400 `root_path_refused`"}
    text = (DOCS / "servers.md").read_text()
    assert {status for status in statuses if status not in text} == set()


def test_every_option_and_counter_of_the_simulator_is_documented() -> None:
    options = {f"--{name.replace('_', '-')}" for name in Behaviour.__struct_fields__} - {"--models"} | {"--model"}
    text = (DOCS / "simulator.md").read_text()
    assert {option for option in options if f"`{option}`" not in text and f"`{option}` " not in text} == set()
    assert missing("simulator.md", {*Behaviour.__struct_fields__, *Counters.__struct_fields__}) == set()


def test_every_field_of_a_record_is_documented() -> None:
    structs = [each for each in vars(record).values() if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    fields = {name for each in structs for name in each.__struct_fields__}
    assert len(fields) > 50
    assert missing("records.md", fields) == set()
