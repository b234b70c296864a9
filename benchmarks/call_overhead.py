"""What a call through Python costs beside the module's own time.

    python benchmarks/call_overhead.py [--quick]

A network that does next to nothing, float32[1, 3, 224, 224] to float32[1, 1000], is called as users call it
(`TunedNetwork.run`, numpy in and out) and by itself, in turns. The difference has the checks, the copy of the input
into memory of the module's own, and outputs of the caller's own. The copy alone is timed afterwards: beside the others
it would push their images out of the cache.

Figures, medians: call_us (the difference; goal 30), module_us (the module alone), copy_us (a copy of the input alone).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import Figure, finish

SHAPE, NUM_OUTPUTS = (1, 3, 224, 224), 1000
TURNS, QUICK_TURNS, WARM_UP = 5000, 500, 50
NETWORK = f"""
<ir_version: 8, opset_import: ["" : 17]>
first (float[{", ".join(map(str, SHAPE))}] x) => (float[1, {NUM_OUTPUTS}] y)
<int64[2] begin = {{0, 0}}, int64[2] end = {{1, {NUM_OUTPUTS}}}, int64[2] flat = {{1, -1}}>
{{ rows = Reshape(x, flat) few = Slice(rows, begin, end) y = Relu(few) }}
"""


def seconds_in_turns(calls: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """The seconds of each call in every turn, after a few that are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARM_UP + turns):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn >= WARM_UP:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer turns, and nothing is written")
    options = parser.parse_args()
    import onnx

    from chanas.workflows.models.chain import Model

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(onnx.parser.parse_model(NETWORK), folder / "first.onnx")
        tuned = Model.load(folder / "first.onnx").tune(trials=1, run=folder / "tuned", progress=False)
        network = tuned.build().save(folder / "first").open()
        image = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
        copy = np.empty_like(image)
        network.run(image)
        turns = QUICK_TURNS if options.quick else TURNS
        seconds = seconds_in_turns({"call": lambda: network.run(image), "module": network.program()}, turns)
        seconds |= seconds_in_turns({"copy": lambda: np.copyto(copy, image)}, turns)
    beside = [1e6 * (c - m) for c, m in zip(seconds["call"], seconds["module"], strict=True)]
    alone = {name: 1e6 * statistics.median(seconds[name]) for name in ("module", "copy")}
    figures = {
        "call_us": Figure(statistics.median(beside), 30.0, lower_is_better=True),
        "module_us": Figure(alone["module"]),
        "copy_us": Figure(alone["copy"]),
    }
    for label, figure in figures.items():
        print(f"{label:10s} {figure.value:6.1f}")
    finish("call_overhead", figures, options.quick, {"shape": SHAPE, "turns": TURNS})


if __name__ == "__main__":
    main()
