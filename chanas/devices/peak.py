"""The arithmetic that this machine can do in a second, to judge kernels by."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from chanas.devices.cores import limited_to

# Large enough for the library's best kernel, small enough for a second-level cache to feed it.
_SIZE, _REPEATS = 512, 9


def peak_gflops(num_threads: int) -> float:
    """GFLOP/s (a multiply-add is two) of float32 on `num_threads` cores: the best of a few matrix products by NumPy's
    BLAS, which comes within some percent of what the cores can do (imports torch)."""
    from threadpoolctl import threadpool_limits

    left, right = np.random.default_rng(0).random((2, _SIZE, _SIZE), dtype=np.float32)
    out = np.empty_like(left)
    seconds = []
    with limited_to(num_threads), threadpool_limits(num_threads):
        for _ in range(_REPEATS):
            start = time.perf_counter()
            np.matmul(left, right, out=out)
            seconds.append(time.perf_counter() - start)
    return 2.0 * _SIZE**3 / min(seconds) / 1e9


def shares_of_peak(rates: Sequence[float], peak: float | None) -> list[float | None]:
    """GFLOP/s as shares of a peak, all None where that is not known; of the highest rate where that is higher, which
    shows that the peak's timing was disturbed."""
    if peak is None:
        return [None] * len(rates)
    highest = max([peak, *rates])
    return [rate / highest for rate in rates]
