"""A few seconds of `python -m tests.faults.fuzz`, which says what must hold."""

import pytest

from tests.faults import fuzz


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_whatever_a_reader_is_fed_its_promises_hold(target: str) -> None:
    assert fuzz.run(target, 1, fuzz.numbers(0, 0.4)) > 20


@pytest.mark.full
@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_a_minute_of_it(target: str) -> None:
    print(f"{target}: {fuzz.run(target, 2, fuzz.numbers(0, 60.0)):,} cases held")


def test_a_case_is_the_same_again() -> None:
    assert [fuzz.case_of("sse", 3, number)[0] for number in range(50)] == [
        fuzz.case_of("sse", 3, number)[0] for number in range(50)
    ]
    assert fuzz.case_of("sse", 3, 1)[0] != fuzz.case_of("sse", 4, 1)[0]


def test_a_case_that_does_not_hold_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(data: bytes, rng: object) -> None:
        raise ValueError("no")

    seeds, words = fuzz.TARGETS["sse"][1:]
    monkeypatch.setitem(fuzz.TARGETS, "sse", (broken, seeds, words))
    with pytest.raises(AssertionError, match=r"--target sse --seed 5 --case 0: b'"):
        fuzz.main(["--target", "sse", "--seed", "5", "--seconds", "1"])
    assert fuzz.main(["--target", "yaml", "--case", "7"]) == 0
    assert capsys.readouterr().out == "yaml: 1 cases held\n"
