"""Strategies of Kernel Tuner played on records of chanas' trials, by its own simulation.

Each coordinate of a space is a tunable parameter, the place of its option; only measured points pass the restrictions.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chanas.compiler.space import ScheduleSpace
from chanas.prescheduler.records.store import TuningRecord

PREFIX = "kernel_tuner:"
_KERNEL, _SIZE = "operator", (1,)
_MOST_S = 20.0
"""Seconds of a strategy; with recorded trials they take less than one."""
_COSTS = ("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time")


def is_installed() -> bool:
    return importlib.util.find_spec("kernel_tuner") is not None


def replay(
    space: ScheduleSpace[Any], records: Sequence[TuningRecord], strategy: str, num_trials: int, seed: int
) -> list[float | None]:
    """Seconds of each distinct point that a strategy asks for, in order; None of such as failed.

    A strategy may never find as many points as it is asked for, and go on: `greedy_ils` does where it has seen all
    points that lie together. It is ended then.
    """
    import kernel_tuner
    from constraint import FunctionConstraint
    from kernel_tuner.util import ErrorConfig

    options = {c.name: list(range(len(c.options))) for c in space.coordinates if len(c.options) > 1}
    known: dict[tuple[int, ...], TuningRecord] = {}
    for record in records:
        groups = space.groups(record.point)
        known[tuple(c.options.index(groups[c.name]) for c in space.coordinates if c.name in options)] = record
    with tempfile.TemporaryDirectory(prefix="chanas-bench-") as folder, contextlib.redirect_stdout(io.StringIO()):
        cache = Path(folder) / "cache.json"
        cache.write_text(json.dumps(_cache(options, known)), encoding="utf-8")
        results, _ = kernel_tuner.tune_kernel(
            _KERNEL,
            "void operator() {}",
            _SIZE,
            [],
            options,
            restrictions=[FunctionConstraint(lambda *place: place in known)],
            lang="C",
            strategy=strategy,
            strategy_options={"max_fevals": num_trials, "time_limit": _MOST_S},
            simulation_mode=True,
            cache=str(cache),
            quiet=True,
            seed=seed,
        )
    seconds: dict[tuple[int, ...], float | None] = {}
    for result in results:
        place = tuple(result[name] for name in options)
        value = result["time"]
        seconds.setdefault(place, None if isinstance(value, (str, ErrorConfig)) else 1e-3 * float(value))
    return [s for place, s in seconds.items() if place in known]


def _cache(options: dict[str, list[int]], known: dict[tuple[int, ...], TuningRecord]) -> dict[str, Any]:
    """Records as Kernel Tuner keeps them, times in ms."""
    entries = {}
    for place, record in known.items():
        time = "RuntimeFailedConfig" if record.seconds is None else 1e3 * record.seconds
        costs = dict.fromkeys(_COSTS, 0.0)
        entries[",".join(map(str, place))] = {**dict(zip(options, place, strict=True)), "time": time, **costs}
    return {
        "device_name": "records",
        "kernel_name": _KERNEL,
        "problem_size": list(_SIZE),
        "tune_params_keys": list(options),
        "tune_params": options,
        "objective": "time",
        "cache": entries,
    }
