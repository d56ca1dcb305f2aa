"""Times in buckets: precision, merging, and the cursor against a plain sort."""

import math

from hypothesis import given
from hypothesis import strategies as st

from routing.core.histogram import Histogram, bucket_of

SECONDS = st.floats(min_value=0.0001, max_value=999_999.0)


def histogram_of(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(bucket_of(value))
    return histogram


def exact_p95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def test_an_empty_histogram_has_no_percentile() -> None:
    assert Histogram().p95() is None


def test_times_of_nothing_count_and_are_nothing() -> None:
    assert histogram_of([0.0]).p95() == 0.0
    assert histogram_of([-1.0]).p95() == 0.0


def test_times_beyond_the_last_bucket_count_in_it() -> None:
    histogram = histogram_of([1e9, math.inf])
    assert histogram.count == 2
    assert abs((histogram.p95() or 0.0) / 1_000_000 - 1) < 0.05


def test_the_percentile_is_the_nearest_rank() -> None:
    assert round(histogram_of([1.0] * 19 + [9.0]).p95() or 0.0) == 1
    assert round(histogram_of([1.0] * 18 + [9.0] * 2).p95() or 0.0) == 9


@given(st.lists(SECONDS, min_size=1, max_size=80))
def test_the_percentile_is_within_two_percent_of_the_sorted_one(values: list[float]) -> None:
    assert abs((histogram_of(values).p95() or 0.0) / exact_p95(values) - 1) <= 0.02


@given(st.lists(st.tuples(SECONDS, st.booleans()), min_size=1, max_size=60))
def test_reading_between_adding_and_taking_changes_no_result(steps: list[tuple[float, bool]]) -> None:
    histogram = Histogram()
    kept: list[float] = []
    for value, take in steps:
        if take and kept:
            histogram.take({bucket_of(kept.pop(0)): 1})
        else:
            histogram.add(bucket_of(value))
            kept.append(value)
        assert histogram.count == len(kept)
        assert histogram.p95() == histogram_of(kept).p95()


def test_merging_is_adding_the_counts() -> None:
    merged = histogram_of([0.1, 0.2])
    merged.merge({bucket_of(5.0): 3, bucket_of(0.1): 1})
    assert merged.count == 6
    assert merged.p95() == histogram_of([0.1, 0.2, 5.0, 5.0, 5.0, 0.1]).p95()


def test_clearing_leaves_an_empty_histogram() -> None:
    histogram = histogram_of([1.0, 2.0])
    histogram.p95()
    histogram.clear()
    assert (histogram.count, histogram.p95()) == (0, None)
    histogram.add(bucket_of(0.5))
    assert histogram.p95() == histogram_of([0.5]).p95()
