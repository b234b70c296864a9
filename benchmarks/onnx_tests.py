"""ONNX's own operator tests through `chanas tune`'s way without the tuning: opened, read, built with default schedules,
run, and compared with the outputs that the tests come with.

    .venv/bin/python benchmarks/onnx_tests.py [--weights] [--only PART] [--workers N] [--json FILE]

The cases are all of those of the installed package `onnx`: its generated node tests, pytorch-converted,
pytorch-operator, simple, and its light networks, whose input is a ramp, as ONNX's own runner makes it. All of them are
run; those that `onnx_exclusions` gives a cause for do not count among what should be right. `--weights` makes all
inputs but the first one of floats weights, as networks have them.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from default_program import compiled, default_module, outputs_of
from onnx_exclusions import RULES, cause_of

STAGES = ("open", "read", "build", "run", "compare", "right")
_SECONDS = 180.0
_NARROW = {"float16": 2e-3, "bfloat16": 1.6e-2}  # two steps of what outputs were rounded to; we compute in float32


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
    """All tests."""
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test.loader import load_model_tests

    for kind in ("pytorch-converted", "pytorch-operator", "simple"):
        for test in sorted(load_model_tests(kind=kind), key=lambda t: t.name):
            if test.model_dir is None:
                continue
            folder = Path(test.model_dir)
            model = onnx.load(folder / "model.onnx")
            sets = sorted(folder.glob("test_data_set_*"))
            if not sets:
                continue
            inputs, outputs = (_arrays(sets[0], part) for part in ("input", "output"))
            yield Case(test.name, kind, model, inputs, outputs, test.rtol, test.atol)
    yield from _light()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    for test in tests:
        assert test.data_sets is not None
        inputs, outputs = (
            [numpy_helper.to_array(a) if isinstance(a, onnx.TensorProto) else a for a in part]
            for part in test.data_sets[0]
        )
        yield Case(test.name, "node", test.model, inputs, outputs, test.rtol, test.atol)


def _arrays(folder: Path, part: str) -> list[Any]:
    """A test's inputs or outputs; None for such as are no tensors."""
    import onnx
    from onnx import numpy_helper

    found: list[Any] = []
    for i in range(len(list(folder.glob(f"{part}_*.pb")))):
        tensor = onnx.TensorProto()
        try:
            tensor.ParseFromString((folder / f"{part}_{i}.pb").read_bytes())
            found.append(numpy_helper.to_array(tensor))
        except Exception:
            found.append(None)
    return found


def _light() -> Iterator[Case]:
    """Networks whose weights are made by nodes, with the ramp from 0 to 1 that ONNX's runner gives them."""
    import onnx
    from onnx import numpy_helper
    from onnx.backend.test import __file__ as where

    for path in sorted((Path(where).parent / "data" / "light").glob("*.onnx")):
        model = onnx.load(path)
        weights = {tensor.name for tensor in model.graph.initializer}
        inputs = []
        for value in model.graph.input:
            if value.name not in weights:
                shape = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
                num = int(np.prod(shape))
                inputs.append((np.arange(num).reshape(shape) / num).astype(np.float32))
        outputs = []
        for i in range(len(model.graph.output)):
            tensor = onnx.TensorProto()
            tensor.ParseFromString(path.with_name(f"{path.stem}_output_{i}.pb").read_bytes())
            outputs.append(numpy_helper.to_array(tensor))
        yield Case(path.stem, "light", model, inputs, outputs, 1e-3, 1e-7)


def with_weights(case: Case) -> Case | None:
    """The case with all inputs but the first one of floats as weights; None of one with one input, or with texts."""
    import onnx
    from onnx import numpy_helper

    names = [v.name for v in case.model.graph.input]
    are_arrays = all(isinstance(a, np.ndarray | np.generic) and np.asarray(a).dtype != object for a in case.inputs)
    if len(case.inputs) < 2 or len(names) != len(case.inputs) or not are_arrays:
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

    from chanas.devices.host import load_target
    from chanas.errors import ChanasError
    from chanas.models.folding import simplify
    from chanas.models.lowering import lower
    from chanas.models.reading.reader import read_graph
    from chanas.models.sources.model import own_type
    from chanas.models.sources.opening import open_model

    stage = "open"
    try:
        path = folder / "case.onnx"
        onnx.save(case.model, path)
        names = [v.name for v in case.model.graph.input]
        weights = {t.name for t in case.model.graph.initializer}
        names = [n for n in names if n not in weights] if len(names) != len(case.inputs) else names
        shapes = {
            n: a.shape
            for n, a in zip(names, case.inputs, strict=True)
            if n not in weights and isinstance(a, np.ndarray | np.generic)
        }
        opened = open_model(path, shapes)
        stage = "read"
        target = load_target("cpu")
        graph = simplify(read_graph(opened.proto, opened.inputs))
        program = lower(graph, target)
        stage = "build"
        made = default_module(program, target)
        executable = compiled(made, target)
        stage = "run"
        given = [np.asarray(a) for n, a in zip(names, case.inputs, strict=True) if n not in weights]
        arrays = [a.astype(facts.dtype) for a, facts in zip(given, opened.inputs, strict=True)]
        outputs = outputs_of(executable, made, arrays)
        stage = "compare"
        for i, (got, wanted) in enumerate(zip(outputs, case.outputs, strict=True)):
            wanted = np.asarray(wanted)
            if got.shape != wanted.shape:
                return stage, f"output {i}: {list(got.shape)} instead of {list(wanted.shape)}"
            atol = case.atol if case.kind == "light" else max(case.atol, 1e-5)
            own, atol = (max(least, _NARROW.get(str(wanted.dtype), 0.0)) for least in (max(case.rtol, 1e-3), atol))
            wanted = wanted.astype(own_type(str(wanted.dtype)))
            if not np.allclose(got, wanted, rtol=own, atol=atol, equal_nan=True):
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
    causes = {}
    for case in found:
        given = with_weights(case) if asked.weights else case
        if given is not None:
            causes[f"{case.kind}/{case.name}"] = cause_of(given.model, given.inputs, given.outputs)
    report = {
        name: {"stage": stage, "said": said, "outcome": kind_of(stage, said), "excluded": causes[name]}
        for name, (stage, said) in sorted(outcomes.items())
        if stage != "none"
    }
    print_report(report)
    print(f"{time.monotonic() - start:.0f} s")
    if asked.json is not None:
        asked.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def kind_of(stage: str, said: str) -> str:
    """What an outcome counts as."""
    if stage == "right":
        return stage
    return "refused" if said.startswith("refused") else "traceback" if said.startswith("TRACEBACK") else "wrong"


def print_report(report: Mapping[str, Mapping[str, Any]]) -> None:
    """Print what is not right, then the counts by set and by cause of exclusion."""
    for name, case in report.items():
        if case["outcome"] != "right":
            why = f" [excluded: {case['excluded']}]" if case["excluded"] else ""
            print(f"{name}: {case['stage']}: {case['said']}{why}")
    print(
        "\n| set | cases | excluded | right of the rest | wrong | refused | traceback |\n|---|---|---|---|---|---|---|"
    )
    kinds = sorted({name.partition("/")[0] for name in report})
    for kind in (*kinds, "all"):
        own = [case for name, case in report.items() if kind in ("all", name.partition("/")[0])]
        left = [case for case in own if not case["excluded"]]
        counts = collections.Counter(case["outcome"] for case in left)
        share = f"{counts['right']} of {len(left)} ({100 * counts['right'] / max(len(left), 1):.1f} %)"
        others = " | ".join(str(counts[o]) for o in ("wrong", "refused", "traceback"))
        print(f"| {kind} | {len(own)} | {len(own) - len(left)} | {share} | {others} |")
    print("\n| excluded because of | cases | right | wrong | refused | traceback |\n|---|---|---|---|---|---|")
    for cause in RULES:
        counts = collections.Counter(case["outcome"] for case in report.values() if case["excluded"] == cause)
        if counts:
            others = " | ".join(str(counts[o]) for o in ("right", "wrong", "refused", "traceback"))
            print(f"| {cause} | {sum(counts.values())} | {others} |")


if __name__ == "__main__":
    main()
