"""A detector from its file to a C library, in one table: frames per second, the speed-up over TVM without schedules,
and mean average precision at each step.

    python examples/detector/deploy.py --model runs/detector/detector.pt2 --data runs/detector/val
                                       --calibration runs/detector/calibration [--minutes 5] [--threads 1] [--out tuned]

1. TVM without schedules, in float32; its accuracy is that of the framework, whose outputs it has.
2. `chanas tune`, in float32.
3. `chanas tune --dtype int8`, calibrated with the pictures of a folder that is not `--data`.
4. `chanas export` of that, a C library, which this script loads by ctypes.

Each is tuned for `--minutes`. The last three run in turns; the table is printed, and written to `deploy.json` in the
folder `--out`.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from boxes import Floats
from evaluate import Predict, evaluate, open_predict
from table import untuned_row

from chanas.bundle.tuned import TunedNetwork
from chanas.core.effort import NetworkEffort
from chanas.core.usage import Usage
from chanas.export.tuned_library import export_tuned
from chanas.files.writing import write_json
from chanas.workflows.models.chain import LoadedModel, Model

UNTUNED, TUNED, INT8, LIBRARY = "TVM without schedules", "tuned", "tuned, int8", "C library of it"
ROUNDS = 21


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="detector.onnx or detector.pt2")
    parser.add_argument("--data", type=Path, required=True, help="a folder that shapes.py or train.py has written")
    parser.add_argument("--calibration", type=Path, required=True, help="a folder of pictures")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--num-images", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("tuned"))
    options = parser.parse_args()
    loaded, usage = Model.load(options.model), Usage("cpu", options.threads)
    untuned_s = float(untuned_row(loaded, usage)["seconds"])
    tuned = {name: tuned_network(loaded, options, dtype) for name, dtype in ((TUNED, "f32"), (INT8, "int8"))}
    shapes = [tuple(entry["shape"]) for entry in tuned[INT8].document["outputs"]]
    library = export_tuned(tuned[INT8].folder, options.out / "library", name="detector").library
    runs: dict[str, Predict] = {name: lambda image, n=network: n.run(image) for name, network in tuned.items()}  # type: ignore[misc]
    runs[LIBRARY] = library_predict(library, "detector", shapes)
    image = np.random.default_rng(0).random(tuple(tuned[INT8].document["inputs"][0]["shape"]), np.float32)
    seconds = {UNTUNED: untuned_s, **median_seconds(runs, image)}
    scores = {UNTUNED: evaluate(open_predict(options.model), options.data, options.num_images)}
    scores |= {name: evaluate(run, options.data, options.num_images) for name, run in runs.items()}
    rows = [
        {"step": name, "seconds": s, "map50": scores[name].map50, "map": scores[name].map}
        for name, s in seconds.items()
    ]
    write_json(options.out / "deploy.json", {"device": tuned[TUNED].target.device, "rows": rows})
    print(f"{'':24}{'FPS':>8}{'speed-up':>10}{'mAP50':>8}{'mAP50-95':>10}")
    for name, s in seconds.items():
        print(f"{name:24}{1 / s:8.2f}{untuned_s / s:9.2f}x{scores[name].map50:8.1%}{scores[name].map:10.1%}")


def tuned_network(loaded: LoadedModel, options: argparse.Namespace, dtype: str) -> TunedNetwork:
    """The network tuned in a type, in a folder of its own."""
    calibration = None
    if dtype == "int8":
        loaded, calibration = loaded.for_pictures({"preset": "unit"}, to_calibrate=True), str(options.calibration)
    effort = NetworkEffort(minutes=options.minutes, calibration=calibration)
    folder = options.out / f"{loaded.name}-{dtype}"
    tuned = loaded.tune(Usage("cpu", options.threads, dtype), effort=effort, run=options.out, folder=folder)
    if tuned.agreement is not None:
        print(tuned.agreement.line())
    return tuned.build().save(folder).open()


def library_predict(library: Path, name: str, shapes: Sequence[tuple[int, ...]]) -> Predict:
    """The exported library as a function of arrays: linked as a shared one, and called through ctypes."""
    shared = library.with_suffix(".so")
    whole = ["-Wl,--whole-archive", str(library), "-Wl,--no-whole-archive"]
    subprocess.run(["cc", "-shared", "-o", str(shared), *whole, "-lm"], check=True)
    run = getattr(ctypes.CDLL(str(shared.resolve())), f"{name}_run")

    def predict(image: Floats) -> list[Floats]:
        given = np.ascontiguousarray(image, np.float32)
        found = [np.zeros(shape, np.float32) for shape in shapes]
        status = run(*(array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for array in (given, *found)))
        if status != 0:
            raise SystemExit(f"{name}_run returned {status}")
        return found

    return predict


def median_seconds(runs: Mapping[str, Callable[[Floats], object]], image: Floats) -> dict[str, float]:
    """Median seconds of a call of each, in turns."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = time.perf_counter()
            run(image)
            found[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


if __name__ == "__main__":
    main()
