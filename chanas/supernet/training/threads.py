"""Choose the number of threads that PyTorch trains with. More are faster on idle cores, but where another process wants
one of them, threads that wait for each other at every operator make a step tens of times slower; so a few steps are
timed first."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_REPEATS = 3


def fastest_num_threads(step: Callable[[], None], most: int) -> int:
    """1 or `most`, whichever runs `step` faster now; PyTorch is left with that number.

    Args:
        step: does the work once; it must be free of side effects.
        most: how many threads there may be.
    """
    if most <= 1:
        return most
    seconds = {}
    for num_threads in (1, most):
        torch.set_num_threads(num_threads)
        step()
        start = time.perf_counter()
        for _ in range(_REPEATS):
            step()
        seconds[num_threads] = time.perf_counter() - start
    best = min(seconds, key=lambda n: seconds[n])
    torch.set_num_threads(best)
    return best
