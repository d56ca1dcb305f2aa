"""CPU time of calls in this process: the best of several rounds, because everything that disturbs only adds."""

import time
from collections.abc import Callable, Sequence


def cpu_us(calls: Sequence[Callable[[], object]], *, times: int, rounds: int = 5) -> list[float]:
    """Microseconds of CPU for one call of each.

    The rounds alternate between them, so that a machine that is slower for a while is slower for all.
    """
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for number, call in enumerate(calls):
            start = time.process_time_ns()
            for _ in range(times):
                call()
            best[number] = min(best[number], (time.process_time_ns() - start) / times / 1_000)
    return best
