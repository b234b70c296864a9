"""Networks in int8 beside other runtimes' own static quantisation: latency, and what is right of labelled pictures.

    python benchmarks/int8_networks.py NETWORK… --calibration FOLDER [--preprocess raw] [--mean M] [--std S]
                                       [--filter F] [--pictures FOLDER --labels FILE.csv] [--threads 1] [--minutes 5]
                                       [--run runs/int8_networks]

NETWORK is an ONNX file or `torchvision:NAME` (random weights: latencies alone). All are calibrated with the same
pictures: ours by `chanas tune --dtype int8`, ONNX Runtime's by its `quantize_static` (QDQ, weights by channel, min-max;
weights of seven bits where the processor has no VNNI, as it advises), OpenVINO's by NNCF (mixed preset). Each is also
there in float32, ours tuned for as long. Contenders are processes of their own, pinned to the same cores, in turns.

FILE.csv has lines `file,index` of pictures in the folder: of these, prepared in the same way, the right ones are
counted for each contender, and those of which the largest output is that of ONNX Runtime in float32.

Figures: the faster of ONNX Runtime's and OpenVINO's int8 over ours, by network.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from common import Figure, finish
from contenders import Contender, ContenderError, time_in_turns
from network_latency import Compared, print_table

from chanas.core.effort import NetworkEffort
from chanas.core.usage import Usage
from chanas.errors import ChanasError
from chanas.files.run import RunDirectory

if TYPE_CHECKING:
    from chanas.core.arrays import Array
    from chanas.workflows.models.chain import LoadedModel

OURS, OURS_FLOAT = "chanas", "chanas float32"
RUNTIMES = {"ONNX Runtime": "ONNX Runtime int8", "OpenVINO": "OpenVINO int8"}
"""Runtimes in float32 and in int8."""
GOALS = {"mobilenet_v3_large": 2.5, "resnet50": 1.0}
ROUNDS, MIN_ROUND_S = 41, 0.03


def tuned_folders(loaded: LoadedModel, run: Path, options: argparse.Namespace) -> dict[str, Path]:
    """Our networks, made now unless they are there."""
    found = {}
    for name, dtype in ((OURS, "int8"), (OURS_FLOAT, "f32")):
        folder = run / f"{loaded.name}-{options.threads}t-{dtype}"
        calibration = str(options.calibration) if dtype == "int8" else None
        if not folder.is_dir():
            effort = NetworkEffort(minutes=options.minutes, calibration=calibration)
            usage = Usage("cpu", options.threads, dtype)
            loaded.tune(usage, effort=effort, run=RunDirectory(run)).build().save(folder)
        found[name] = folder
    return found


def other_files(
    loaded: LoadedModel, inputs: Sequence[Sequence[Array]], run: Path, notes: dict[str, str]
) -> dict[str, Path]:
    """Files of the other contenders, made now unless they are there."""
    from chanas.workflows.models.contenders import Subject, onnx_file, quantised_by_nncf, quantised_by_onnxruntime

    opened = loaded.opened
    is_file = opened.origin["kind"] == "onnx"
    onnx = Path(opened.origin["source"]) if is_file else run / f"{loaded.name}.onnx"
    onnx = onnx_file(Subject(opened.program, onnx, (), 1))
    files = dict.fromkeys(RUNTIMES, onnx)
    makers = {"ONNX Runtime": (quantised_by_onnxruntime, ".onnx"), "OpenVINO": (quantised_by_nncf, ".xml")}
    for runtime, (make, suffix) in makers.items():
        out = run / f"{loaded.name}-{runtime.replace(' ', '').lower()}-int8{suffix}"
        try:
            if not out.is_file():
                make(onnx, inputs, out)
            files[RUNTIMES[runtime]] = out
        except Exception as error:  # another project's quantiser, whatever it raises
            notes[RUNTIMES[runtime]] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return files


def latencies(
    loaded: LoadedModel, folders: Mapping[str, Path], files: Mapping[str, Path], notes: dict[str, str], threads: int
) -> Compared:
    """All contenders timed in turns."""
    result = Compared(loaded.name, f"{len(folders) + len(files)} contenders", notes=notes)
    inputs = loaded.opened.random_inputs()
    with contextlib.ExitStack() as stack:
        saved = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chanas-bench-"))) / "inputs.npz"
        np.savez(saved, *inputs)
        calls: dict[str, tuple[Contender, int]] = {}
        kinds = {name: ("tuned network", {"folder": str(f), "inputs": str(saved)}) for name, f in folders.items()}
        kinds |= {name: (name.removesuffix(" int8"), {"onnx": str(file)}) for name, file in files.items()}
        for name, (kind, arguments) in kinds.items():
            try:
                calls[name] = (stack.enter_context(Contender(kind, threads, **arguments)), 0)
            except ContenderError as error:
                notes[name] = str(error)
        result.timings.update(time_in_turns(calls, ROUNDS, MIN_ROUND_S))
    return result


def _predictors(
    folders: Mapping[str, Path], files: Mapping[str, Path]
) -> Iterator[tuple[str, Callable[[Array], Array]]]:
    """Each contender as a function from an input to logits."""
    from chanas.bundle.tuned import TunedNetwork

    for name, folder in folders.items():
        network = TunedNetwork.open(folder)
        yield name, _first_of(network.run)
    for name, file in files.items():
        if name.startswith("ONNX"):
            import onnxruntime

            session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
            taken = session.get_inputs()[0].name
            yield name, _first_of(functools.partial(session.run, None), taken)
        else:
            import openvino

            options = {"INFERENCE_PRECISION_HINT": "f32"}
            compiled = openvino.Core().compile_model(str(file), "CPU", options)
            yield name, _first_of(compiled)


def _first_of(run: Callable[[Any], Any], taken: str | None = None) -> Callable[[Array], Array]:
    """What gives the first output of a runtime, which may want its input by name."""
    return lambda x: run(x if taken is None else {taken: x})[0]


def accuracies(
    loaded: LoadedModel, folders: Mapping[str, Path], files: Mapping[str, Path], pictures: Path, labels: Path
) -> dict[str, dict[str, int]]:
    """Pictures that each contender gets right, and those of which it says the same as ONNX Runtime in float32."""
    from chanas.network.pictures import read_picture
    from chanas.network.preprocess import Preprocess

    prepare = Preprocess.from_json(dict(loaded.pictures["preprocess"]))
    shape = loaded.graph.inputs[0].shape
    with open(labels, newline="", encoding="utf-8") as file:
        truth = {name: int(index) for name, index in csv.reader(file) if index.isdigit()}
    inputs = [prepare(read_picture(pictures / name, name).image).reshape(shape) for name in truth]
    said = {name: [int(run(x).argmax()) for x in inputs] for name, run in _predictors(folders, files)}
    plain = said["ONNX Runtime"]
    return {
        name: {
            "right": sum(map(int.__eq__, found, truth.values())),
            "same": sum(map(int.__eq__, found, plain)),
            "pictures": len(truth),
        }
        for name, found in said.items()
    }


def measure(source: str, options: argparse.Namespace) -> dict[str, Any]:
    """Tune a network, have it quantised by others, time and compare all of them.

    Raises:
        ChanasError: it cannot be opened, calibrated or tuned.
    """
    from chanas.workflows.models.calibration import read_pictures
    from chanas.workflows.models.chain import Model

    changes: dict[str, Any] = {"preset": options.preprocess}
    changes |= {name: (number,) for name in ("mean", "std") if (number := getattr(options, name)) is not None}
    changes |= {} if options.filter is None else {"filter": options.filter}
    loaded = Model.load(source).for_pictures(changes)
    run, notes = options.run, dict[str, str]()
    run.mkdir(parents=True, exist_ok=True)
    inputs = read_pictures(options.calibration, loaded.graph, loaded.pictures["preprocess"], loaded.name)
    folders, files = tuned_folders(loaded, run, options), other_files(loaded, inputs, run, notes)
    compared = latencies(loaded, folders, files, notes, options.threads)
    print_table(compared)
    row = compared.to_json()
    if options.labels is not None:
        row["accuracy"] = accuracies(loaded, folders, files, options.pictures, options.labels)
        for name, found in row["accuracy"].items():
            print(f"  {name:30s} {found['right']} of {found['pictures']} right, {found['same']} as in float32")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NETWORK", help="ONNX files, or torchvision:NAME")
    parser.add_argument("--calibration", type=Path, required=True, help="folder of pictures to calibrate with")
    parser.add_argument("--preprocess", default="imagenet", help="how pictures are prepared")
    parser.add_argument("--mean", type=float, help="subtracted from pixels")
    parser.add_argument("--std", type=float, help="what pixels are divided by then")
    parser.add_argument("--filter", help="of the resizing")
    parser.add_argument("--pictures", type=Path, help="folder of the labelled pictures")
    parser.add_argument("--labels", type=Path, help="CSV of file and index")
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender")
    parser.add_argument("--minutes", type=float, default=5.0, help="of each of our tunings")
    parser.add_argument("--run", type=Path, default=Path("runs/int8_networks"), help="where folders and records lie")
    options = parser.parse_args()
    if (options.pictures is None) != (options.labels is None):
        parser.error("--pictures and --labels go together")
    rows, figures = [], dict[str, Figure]()
    for source in options.networks:
        name = re.sub(r"\W", "_", Path(source.partition(":")[2] or source).stem)
        try:
            rows.append(measure(source, options))
        except ChanasError as error:
            print(f"{name}: {error}")
            figures[f"{name}_vs_best_int8"] = Figure(None, GOALS.get(name))
            continue
        medians = {kind: found["median_s"] for kind, found in rows[-1]["contenders"].items()}
        others = [medians[kind] for kind in RUNTIMES.values() if kind in medians]
        ratio = min(others) / medians[OURS] if others else None
        figures[f"{name}_vs_best_int8"] = Figure(ratio, GOALS.get(name))
    facts = {"threads": options.threads, "minutes": options.minutes, "networks": rows}
    names = "-".join(row["network"] for row in rows)
    threads = "" if options.threads == 1 else f"-{options.threads}t"
    finish(f"int8_networks-{names}{threads}", figures, quick=False, extra=facts)


if __name__ == "__main__":
    main()
