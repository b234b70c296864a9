"""ONNX's own operator tests through `chanas tune`'s way without the tuning: opened, read, built with default schedules,
run, and compared with the outputs that the tests come with.

    .venv/bin/python benchmarks/onnx_tests.py [--weights] [--only PART] [--workers N] [--json FILE]

The cases are those of the installed package `onnx`: pytorch-converted, pytorch-operator, simple, light, and of its
generated node tests those whose tensors are float32, int32, int64 or bool, at least one of them float32. Operators of
training, sequences, texts, random numbers, `ai.onnx.ml` and image decoding are left out. `--weights` makes all inputs
but the first one of floats weights, as networks have them.
"""

from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

STAGES = ("open", "read", "build", "run", "compare", "right")
_TYPES = (1, 6, 7, 9)  # float32, int32, int64, bool
_LEFT_OUT = (
    *("Adagrad", "Adam", "Gradient", "Momentum"),
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomUniform"),
    *("ImageDecoder", "Optional", "RegexFullMatch", "Sequence", "String", "TfIdfVectorizer"),
)
_SECONDS = 60.0


@dataclass(frozen=True)
class Case:
    """A test: a model, and arrays of its inputs and outputs."""

    name: str
    kind: str
    model: Any
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    rtol: float
    atol: float


def cases() -> Iterator[Case]:
    """All tests that the rule selects."""
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test.loader import load_model_tests

    for kind in ("pytorch-converted", "pytorch-operator", "simple", "light"):
        for test in sorted(load_model_tests(kind=kind), key=lambda t: t.name):
            if test.model_dir is None:
                continue
            folder = Path(test.model_dir)
            model = onnx.load(folder / "model.onnx")
            sets = sorted(folder.glob("test_data_set_*"))
            if not sets:
                continue
            arrays = []
            for part in ("input", "output"):
                found = []
                for i in range(len(list(sets[0].glob(f"{part}_*.pb")))):
                    tensor = onnx.TensorProto()
                    try:
                        tensor.ParseFromString((sets[0] / f"{part}_{i}.pb").read_bytes())
                        found.append(numpy_helper.to_array(tensor))
                    except Exception:
                        found.append(None)
                arrays.append(found)
            yield Case(test.name, kind, model, *arrays, test.rtol, test.atol)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    for test in tests:
        if is_selected(test.model):
            inputs, outputs = test.data_sets[0]
            yield Case(test.name, "node", test.model, inputs, outputs, test.rtol, test.atol)


def is_selected(model: Any) -> bool:
    """True of a node test that the rule takes."""
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx") or any(node.op_type.startswith(name) for name in _LEFT_OUT):
            return False
        if any(a.name == "training_mode" and a.i for a in node.attribute) or "training" in model.graph.name:
            return False
    values = [*model.graph.input, *model.graph.output]
    if any(not value.type.HasField("tensor_type") for value in values):
        return False
    types = [value.type.tensor_type.elem_type for value in values]
    return all(t in _TYPES for t in types) and 1 in types


def with_weights(case: Case) -> Case | None:
    """The case with all inputs but the first one of floats as weights; None of a case with one input."""
    import onnx
    from onnx import numpy_helper

    names = [v.name for v in case.model.graph.input]
    if len(case.inputs) < 2 or len(names) != len(case.inputs) or any(i is None for i in case.inputs):
        return None
    floats = [i for i, a in enumerate(case.inputs) if np.asarray(a).dtype == np.float32]
    if not floats:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    kept = floats[0]
    for i in reversed(range(len(names))):
        if i != kept:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(case.inputs[i]), names[i]))
            del model.graph.input[i]
    return Case(case.name, case.kind, model, [case.inputs[kept]], case.outputs, case.rtol, case.atol)


def tried(case: Case, folder: Path) -> tuple[str, str]:
    """The stage that a case reaches (`right` where all is), and what was said."""
    import onnx
    import tvm
    from tvm import relax

    from chanas.devices.host import load_target
    from chanas.errors import ChanasError
    from chanas.prescheduler.models.folding import simplify
    from chanas.prescheduler.models.lowering import lower
    from chanas.prescheduler.models.module import program_module
    from chanas.prescheduler.models.reading.reader import read_graph
    from chanas.prescheduler.models.sources.opening import open_model
    from chanas.prescheduler.tuning.default_points import ranked_points

    stage = "open"
    try:
        path = folder / "case.onnx"
        onnx.save(case.model, path)
        names = [v.name for v in case.model.graph.input]
        weights = {t.name for t in case.model.graph.initializer}
        names = [n for n in names if n not in weights] if len(names) != len(case.inputs) else names
        shapes = {n: tuple(np.asarray(a).shape) for n, a in zip(names, case.inputs, strict=True) if n not in weights}
        opened = open_model(path, shapes)
        stage = "read"
        target = load_target("cpu")
        graph = simplify(read_graph(opened.proto, opened.inputs))
        program = lower(graph, target)
        stage = "build"
        chosen = {o.choices: (o.choices[0], ranked_points(o.choices[0], target, 1)[0]) for o in program.tuned}
        made = program_module(program, chosen, target)
        device = target.tvm_target()
        with device, tvm.transform.PassContext(opt_level=3):
            built = tvm.compile(made.module, device)
        stage = "run"
        machine = relax.VirtualMachine(built, tvm.cpu())
        given = [np.asarray(a) for n, a in zip(names, case.inputs, strict=True) if n not in weights]
        arrays = [a.astype(facts.dtype) for a, facts in zip(given, opened.inputs, strict=True)]
        found = machine["main"](*(tvm.runtime.tensor(np.asarray(a, order="C")) for a in (*arrays, *made.parameters)))
        outputs = [o.numpy() for o in ([found] if hasattr(found, "numpy") else found)]
        stage = "compare"
        for i, (got, wanted) in enumerate(zip(outputs, case.outputs, strict=True)):
            wanted = np.asarray(wanted)
            if got.shape != wanted.shape:
                return stage, f"output {i}: {list(got.shape)} instead of {list(wanted.shape)}"
            if not np.allclose(got, wanted, rtol=max(case.rtol, 1e-3), atol=max(case.atol, 1e-5), equal_nan=True):
                return stage, f"output {i} differs by {np.nanmax(np.abs(got.astype(float) - wanted)):.3g}"
        return "right", ""
    except ChanasError as error:
        return stage, f"refused: {error}"
    except Exception as error:
        return (
            stage,
            f"TRACEBACK {type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1][:300]}",
        )


def work(weights: bool) -> None:
    """Try the cases whose numbers come in on standard input."""
    found = list(cases())
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for line in sys.stdin:
            case: Case | None = found[int(line)]
            assert case is not None
            case = with_weights(case) if weights else case
            outcome = ("none", "") if case is None else tried(case, Path(folder))
            print("OUTCOME", json.dumps(outcome), flush=True)


def all_tried(
    numbers: Sequence[int], names: Sequence[str], weights: bool, num_workers: int
) -> dict[str, tuple[str, str]]:
    """Outcomes by name; a worker that dies or hangs is a traceback of its case."""
    from tqdm import tqdm

    left, found = list(reversed(numbers)), dict[str, tuple[str, str]]()
    bar = tqdm(total=len(left), smoothing=0.05)

    def serve() -> None:
        worker: Any = None
        while left:
            try:
                number = left.pop()
            except IndexError:
                break
            if worker is None:
                command = [sys.executable, __file__, "--worker", *(["--weights"] if weights else [])]
                worker = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            worker.stdin.write(f"{number}\n")
            worker.stdin.flush()
            timer = threading.Timer(_SECONDS, worker.kill)
            timer.start()
            while (line := worker.stdout.readline()) and not line.startswith("OUTCOME"):
                pass
            timer.cancel()
            if line:
                found[names[number]] = tuple(json.loads(line.removeprefix("OUTCOME ")))
            else:
                found[names[number]] = ("run", f"TRACEBACK the process ended ({worker.wait()})")
                worker = None
            bar.update(1)

    threads = [threading.Thread(target=serve) for _ in range(num_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bar.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", action="store_true", help="all inputs but one as weights")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write outcomes by name")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        work(asked.weights)
        return
    found = list(cases())
    names = [f"{c.kind}/{c.name}" for c in found]
    start = time.monotonic()
    numbers = [i for i, name in enumerate(names) if asked.only in name]
    outcomes = all_tried(numbers, names, asked.weights, asked.workers)
    outcomes = {name: outcome for name, outcome in outcomes.items() if outcome[0] != "none"}
    table = collections.defaultdict(collections.Counter)
    for name, (stage, said) in sorted(outcomes.items()):
        kind = (
            "right"
            if stage == "right"
            else "refused"
            if said.startswith("refused")
            else "traceback"
            if said.startswith("TRACEBACK")
            else "wrong"
        )
        table[name.partition("/")[0]][kind] += 1
        if stage != "right":
            print(f"{name}: {stage}: {said}")
    for kind, counts in table.items():
        print(kind, sum(counts.values()), dict(counts))
    print("all", len(outcomes), dict(sum(table.values(), collections.Counter())), f"{time.monotonic() - start:.0f} s")
    if asked.json is not None:
        asked.json.write_text(json.dumps(outcomes, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
