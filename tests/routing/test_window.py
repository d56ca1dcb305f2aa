"""The rolling window against a plain list of events, and the decaying counters against the formula."""

from hypothesis import given
from hypothesis import strategies as st

from routing.core.histogram import Histogram, bucket_of
from routing.core.stats import Sums
from routing.core.window import SLICES, Decaying, Window

EVENTS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 50)), max_size=60)
"""Whole seconds since the one before, whole seconds that it took."""


@given(EVENTS, st.sampled_from([30, 60, 600]))
def test_the_window_holds_exactly_the_slices_that_are_young_enough(
    events: list[tuple[int, int]], window_s: int
) -> None:
    window, now, told = Window(window_s, now=0.0), 0, list[tuple[int, int]]()
    slice_s = window_s // SLICES
    for pause, took in events:
        now += pause
        told.append((now, took))
        slice_ = window.at(now)
        slice_.sums.attempts += 1.0
        slice_.sums.first_content_s += took
        slice_.unary += 1
        window.record_time(slice_, bucket_of(took))
        young = [took for at, took in told if at // slice_s > now // slice_s - SLICES]
        expected = Histogram()
        for each in young:
            expected.add(bucket_of(each))
        total = Sums(attempts=float(len(young)), first_content_s=float(sum(young)))
        assert window.total() == (total, len(young), 0.0)
        assert (window.histogram.count, window.histogram.p95()) == (expected.count, expected.p95())


def test_erasing_keeps_only_how_many_attempts_there_were_until_they_age_out() -> None:
    window = Window(600, now=0.0)
    for at in (0.0, 100.0):
        slice_ = window.at(at)
        slice_.sums.attempts += 3.0
        slice_.unary += 1
        window.record_time(slice_, bucket_of(1.0))
    window.erase()
    assert window.total() == (Sums(), 0, 6.0)
    assert window.histogram.count == 0
    window.at(600.0)
    assert window.total() == (Sums(), 0, 3.0)
    window.at(700.0)
    assert window.total() == (Sums(), 0, 0.0)


@given(st.lists(st.floats(0.0, 5000.0), min_size=1, max_size=30), st.floats(0.0, 100.0), st.sampled_from([1.0, 30.0]))
def test_the_decaying_sum_is_the_sum_of_the_decayed_events(pauses: list[float], later: float, half_life: float) -> None:
    decaying, now, times = Decaying(half_life, now=0.0), 0.0, list[float]()
    for pause in pauses:
        now += pause
        times.append(now)
        weight = decaying.weight(now)
        decaying.sums.attempts += weight
    now += later
    expected = sum(0.5 ** ((now - at) / half_life) for at in times)
    assert abs(decaying.read(now).attempts - expected) <= 1e-9 * len(times)


def test_another_half_life_holds_from_its_change_on() -> None:
    decaying = Decaying(30.0, now=0.0)
    decaying.sums.attempts += decaying.weight(0.0)
    decaying.change_half_life(10.0, now=30.0)
    assert decaying.read(40.0).attempts == 0.25
