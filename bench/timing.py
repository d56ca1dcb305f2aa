"""CPU time of a call in this process: the best of several rounds, because everything that disturbs only adds."""

import time
from collections.abc import Callable


def cpu_us(call: Callable[[], object], *, calls: int, rounds: int = 5) -> float:
    """Microseconds of CPU for one `call()`."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time_ns()
        for _ in range(calls):
            call()
        best = min(best, (time.process_time_ns() - start) / calls / 1_000)
    return best
