"""Published networks through `chanas tune`'s way without the tuning, by every road that leads to it: opened, read,
simplified, built with default schedules, run, and compared with the framework.

    python benchmarks/model_matrix.py [--quick] [--only PART …] [--roads ROAD …] [--files FOLDER] [--workers N]
        [--json ROWS.jsonl] [--write]

Networks are torchvision's classifiers, networks of semantic segmentation and detectors, and `TIMM` (`pip install
--no-deps timm`), with random weights; roads are a file of torch.export (`pt2`) and files of both of PyTorch's exporters
to ONNX (`dynamo`, `torchscript`). With `--files`, the ONNX files of a folder as they are (`file`).

Each network has a process of its own with limits of time and memory, so that whatever ends it is a row. Rows are kept
in a file of JSON lines as they come; what is there is not done again. `--write` puts the tables of all machines'
results into docs/models.md. `model_matrix_expected.json` has what is not right, with its line and cause: what differs
from it, in either direction, is printed.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import functools
import hashlib
import importlib
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import Figure, finish, read_results
from default_program import compiled, default_module, outputs_of

ROADS = ("pt2", "dynamo", "torchscript")
STAGES = ("make", "export", "open", "read", "simplify", "lower", "build", "run", "compare", "right")
TIMM = (
    *("resnet26d", "resnet50d", "resnetv2_50", "resnext50_32x4d", "seresnet50", "ecaresnet26t", "skresnet18"),
    *("res2net50_26w_4s", "resnest14d", "gernet_s", "cspresnet50", "cspdarknet53", "darknet53", "dla34", "dpn68"),
    *("ese_vovnet19b_dw", "selecsls42b", "hrnet_w18_small", "inception_v4", "xception41", "repvgg_a0", "mobileone_s0"),
    *("regnetx_002", "regnety_004", "regnetz_b16", "nfnet_l0", "dm_nfnet_f0", "eca_nfnet_l0", "rdnet_tiny"),
    *("mobilenetv3_large_100", "mobilenetv3_small_075", "mobilenetv4_conv_small", "mobilenetv4_hybrid_medium"),
    *("efficientnet_lite0", "tf_efficientnet_b0", "tf_efficientnetv2_b0", "fbnetc_100", "fbnetv3_b", "spnasnet_100"),
    *("lcnet_050", "tinynet_a", "ghostnet_100", "ghostnetv2_100", "mixnet_s", "rexnet_100", "hgnetv2_b0", "starnet_s1"),
    *("repvit_m0_9", "convnext_atto", "convnextv2_atto", "convmixer_768_32", "inception_next_atto", "poolformer_s12"),
    *("fastvit_t8", "edgenext_small", "mobilevit_s", "mobilevitv2_050", "levit_128s", "coatnet_0_rw_224"),
    *(
        "efficientvit_b0",
        "efficientformer_l1",
        "visformer_tiny",
        "caformer_s18",
        "cait_xxs24_224",
        "deit_tiny_patch16_224",
    ),
)
"""Convolutional and hybrid networks that are much used, one or two of a family."""
QUICK = ("torchvision:squeezenet1_1", 64)
EXPECTED = Path(__file__).resolve().parent / "model_matrix_expected.json"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "models.md"
_MARKERS = "<!-- model_matrix begins -->", "<!-- model_matrix ends -->"
_TOLERANCE, _AS_FAR = 1e-3, 4.0
_SECONDS, _GIB = 600.0, 14
_MAX_TEXT = 300
_PRODUCTS = ("conv2d", "conv", "upconv", "conv_transpose", "matmul", "einsum")
_GOAL, _MUCH = 0.97, 0.05
_ROW, _END = "ROW ", "END "


@dataclass(frozen=True)
class Subject:
    """A network, and rows and columns of its image; 0: as its library says."""

    name: str
    size: int = 0


@dataclass(frozen=True)
class Row:
    """The outcome of a network by one road.

    stage      that it ends in, `right` where all is
    line       what was said
    seconds    of each stage; `run` is of the first call
    operators  of the program, conversions between forms left out
    without    shares without a schedule of their own: of these operators, and of the products' multiplications
    error      the largest difference of an output, as a share of the output's own largest number
    """

    network: str
    road: str
    stage: str
    line: str = ""
    size: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    operators: int = 0
    without: Mapping[str, float] = field(default_factory=dict)
    error: float | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        return self.network, self.road, self.size

    @property
    def verdict(self) -> str:
        """`right`, `refused` (in one line), `wrong`, `crash`, or `unexported` where PyTorch's own exporter fails."""
        if self.stage == "right":
            return "right"
        if self.stage in ("make", "export") and not self.line.startswith("refused"):
            return "unexported"
        if self.stage == "compare":
            return "wrong"
        return "refused" if self.line.startswith("refused") else "crash"


# ---- one network, in a process of its own ----------------------------------------------------------------------------
@dataclass
class _Trial:
    """The stage that a network is in, and the seconds of those before."""

    stage: str = "make"
    seconds: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def at(self, stage: str) -> Iterator[None]:
        self.stage, start = stage, time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = round(time.monotonic() - start, 2)


def rows_of(subject: Subject, roads: Sequence[str]) -> Iterator[Row]:
    """Rows of a network, one by one; modules that are the same are built once."""
    from chanas.errors import ChanasError

    made: Any = None
    built: dict[str, Any] = {}
    for road in roads:
        trial = _Trial()
        try:
            with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
                warnings.simplefilter("ignore")
                if road == "file":
                    opened = _opened(Path(subject.name), trial)
                    (inputs, expected), exact = opened.finite_inputs(), None
                else:
                    with trial.at("make"):
                        made = made or _made(subject)
                    with trial.at("export"):
                        path = _exported(made.module, made.shape, road, Path(folder))
                    opened = _opened(path, trial)
                    inputs = opened.random_inputs()
                    expected = _answer(made.module, inputs)
                    exact = functools.partial(_exact_answer, made.module, inputs)
                _prove(opened, inputs, expected, exact, trial, built)
        except ChanasError as error:
            line = f"refused: {' '.join(str(error).split())}"
        except Exception as error:
            line = f"{type(error).__name__}: {' '.join(str(error).split())}"
        else:
            line, trial.stage = trial.facts.pop("line", ""), trial.facts.pop("stage", "right")
        line = line.replace(f"{tempfile.gettempdir()}/", "")
        yield Row(subject.name, road, trial.stage, line[:_MAX_TEXT], subject.size, trial.seconds, **trial.facts)


def _made(subject: Subject) -> Any:
    """A network of a library, with random weights."""
    from chanas.models.sources.libraries import made_network

    library, _, name = subject.name.partition(":")
    return made_network(library, name, {"image": (1, 3, subject.size, subject.size)} if subject.size else {})


def _exported(module: Any, shape: Sequence[int], road: str, folder: Path) -> Path:
    """The file of a road."""
    import torch

    from chanas.models.sources.torch_models import quiet

    image = torch.zeros(*shape)
    path = folder / f"network.{'pt2' if road == 'pt2' else 'onnx'}"
    with quiet(), torch.no_grad():
        if road == "pt2":
            torch.export.save(torch.export.export(module, (image,)), path)
        else:
            torch.onnx.export(module, (image,), path, dynamo=road == "dynamo", verbose=False)
    return path


def _opened(path: Path, trial: _Trial) -> Any:
    from chanas.models.sources.opening import open_model

    with trial.at("open"):
        return open_model(path)


def _answer(module: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a network itself."""
    import torch
    from torch.utils import _pytree as pytree

    with torch.inference_mode():
        found = pytree.tree_leaves(module(*(torch.from_numpy(a.copy()) for a in inputs)))
    return [value.numpy().copy() for value in found]


def _exact_answer(module: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a network in float64."""
    return _answer(copy.deepcopy(module).double(), [a.astype("float64") for a in inputs])


def _prove(
    opened: Any,
    inputs: Sequence[Any],
    expected: Sequence[Any],
    exact: Callable[[], Sequence[Any]] | None,
    trial: _Trial,
    built: dict[str, Any],
) -> None:
    """Build an opened network with default schedules, run it and compare its outputs."""
    from chanas.devices.host import load_target
    from chanas.models.folding import simplify
    from chanas.models.lowering import lower
    from chanas.models.reading.reader import read_graph

    target = load_target("cpu")
    with trial.at("read"):
        graph = read_graph(opened.proto, opened.inputs)
    with trial.at("simplify"):
        graph = simplify(graph)
    with trial.at("lower"):
        program = lower(graph, target)
    kept = [o for o in program.others if not o.is_change]
    trial.facts |= {"operators": len(program.tuned) + len(kept), "without": shares_without(program)}
    with trial.at("build"):
        made = default_module(program, target)
        digest = hashlib.sha256(made.to_json().encode()).hexdigest()
        if digest not in built:
            built.clear()
            built[digest] = compiled(made, target)
    with trial.at("run"):
        outputs = outputs_of(built[digest], made, inputs)
    trial.facts["line"], trial.facts["error"] = difference(outputs, expected, exact)
    trial.facts["stage"] = "compare" if trial.facts["line"] else "right"


def shares_without(program: Any) -> dict[str, float]:
    """The shares of a program without schedules of their own: `operators`, and `products`, of multiplications."""
    kept = [o for o in program.others if not o.is_change and o.name != "attention"]
    num = len(program.tuned) + len([o for o in program.others if not o.is_change])
    tuned = sum(o.choices[0].num_flops for o in program.tuned)
    others = sum(_flops(program, o) for o in kept if o.name in _PRODUCTS)
    return {
        "operators": round(len(kept) / num, 4) if num else 0.0,
        "products": round(others / (tuned + others), 4) if tuned + others else 0.0,
    }


def _flops(program: Any, operation: Any) -> float:
    """Operations of a product that has no schedule of its own; of an einsum as of one matrix product."""
    shapes = [r.shape if hasattr(r, "value") else program.value(r).shape for r in operation.reads]
    if operation.name in ("matmul", "einsum"):
        return 2.0 * float(math.prod(operation.value.shape) * shapes[0][-1])
    pixels = operation.value.shape if operation.name in ("conv2d", "conv") else shapes[0]
    return 2.0 * float(math.prod(pixels) * math.prod(shapes[1][1:]))


def difference(
    outputs: Sequence[Any], expected: Sequence[Any], exact: Callable[[], Sequence[Any]] | None = None
) -> tuple[str, float | None]:
    """The fault of outputs, empty where there is none, and their largest difference, as a share of each one's own
    largest number. Where the framework's float32 is as far from float64 itself (`exact`), that is none."""
    import numpy as np

    if [o.shape for o in outputs] != [e.shape for e in expected]:
        return f"{[list(o.shape) for o in outputs]} instead of {[list(e.shape) for e in expected]}", None
    if not all(np.isfinite(e).all() for e in expected):
        return "the framework's own numbers are not finite", None
    apart = _shares(outputs, expected)
    wrong = [i for i, share in enumerate(apart) if not share <= _TOLERANCE]
    if wrong and exact is not None:
        found = exact()
        ours, theirs = _shares(outputs, found), _shares(expected, found)
        wrong = [i for i in wrong if not ours[i] <= _AS_FAR * theirs[i]]
    line = f"output {wrong[0]} differs by {apart[wrong[0]]:.3g} of its largest number" if wrong else ""
    return line, max(apart, default=0.0)


def _shares(outputs: Sequence[Any], expected: Sequence[Any]) -> list[float]:
    """The largest difference of each output, as a share of what is expected."""
    import numpy as np

    pairs = zip(outputs, expected, strict=True)
    differences = [(np.abs(np.subtract(o, e, dtype=np.float64)).max(initial=0.0), np.abs(e)) for o, e in pairs]
    return [float(apart / (largest.max(initial=0.0) or 1.0)) for apart, largest in differences]


def serve(gib: int, seconds: float) -> None:
    """Try networks that come in as lines, each in a child that inherits what takes long to import. Prints the rows of
    each as they are done, and how the child ended."""
    import resource

    _warm_up()
    for line in sys.stdin:
        name, size, roads = json.loads(line)
        sys.stdout.flush()
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            child = os.fork()
            if not child:
                os.dup2(said.fileno(), sys.stderr.fileno())
                resource.setrlimit(resource.RLIMIT_DATA, (gib << 30, gib << 30))
                for row in rows_of(Subject(name, size), roads):
                    print(_ROW + json.dumps(asdict(row)), flush=True)
                os._exit(0)
            timer = threading.Timer(seconds * len(roads), os.kill, (child, signal.SIGKILL))
            timer.start()
            _, status = os.waitpid(child, 0)
            is_late = timer.finished.is_set()
            timer.cancel()
            timer.join()
            said.seek(0)
            last = next((text.strip() for text in reversed(said.readlines()) if text.strip()), "")
        why = f"took more than {seconds:.0f} s a road" if is_late else f"ended with {status}: {last}"
        print(_END + json.dumps(f"the process {why}"), flush=True)


def _warm_up() -> None:
    """Import what all networks need, and what PyTorch's exporter looks up once; no thread is started."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = _exported(torch.nn.Conv2d(3, 4, 3).eval(), (1, 3, 8, 8), "dynamo", Path(folder))
        for module in ("timm", "torchvision", "tvm.relax", "chanas.models.lowering"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        _opened(path, _Trial())


# ---- all of them -----------------------------------------------------------------------------------------------------
def subjects(files: Path | None = None) -> list[Subject]:
    """All networks, or the ONNX files of a folder."""
    if files is not None:
        return [Subject(str(path)) for path in sorted(files.rglob("*.onnx"))]
    from torchvision import models

    names = [
        *models.list_models(models),
        *models.list_models(models.segmentation),
        *models.list_models(models.detection),
    ]
    return [Subject(f"torchvision:{name}") for name in names] + [Subject(f"timm:{name}") for name in TIMM]


class Server:
    """A process that tries networks in children of its own."""

    def __init__(self, seconds: float = _SECONDS, gib: int = _GIB) -> None:
        self.command = [sys.executable, __file__, "--serve", "--seconds", str(seconds), "--gib", str(gib)]
        self.process: subprocess.Popen[str] | None = None

    def tried(self, subject: Subject, roads: Sequence[str]) -> Iterator[Row]:
        """Rows of a network; what ends a process is the row of the road that it was on."""
        left = list(roads)
        while left:
            if self.process is None:
                quiet = subprocess.DEVNULL
                pipe = subprocess.PIPE
                self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, stderr=quiet, text=True)
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.write(json.dumps([subject.name, subject.size, left]) + "\n")
            self.process.stdin.flush()
            why = "the process that it was forked from ended"
            for line in self.process.stdout:
                if line.startswith(_ROW):
                    yield Row(**json.loads(line.removeprefix(_ROW)))
                    left.pop(0)
                elif line.startswith(_END):
                    why = json.loads(line.removeprefix(_END))
                    break
            else:
                self.close()
            if left:
                yield Row(subject.name, left.pop(0), "process", why[:_MAX_TEXT], subject.size)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def all_tried(
    asked: Sequence[tuple[Subject, Sequence[str]]], num_workers: int, keep: Callable[[Row], None], **limits: Any
) -> None:
    """Try networks, several at a time, and give each row to `keep`."""
    from tqdm import tqdm

    jobs: queue.SimpleQueue[tuple[Subject, Sequence[str]]] = queue.SimpleQueue()
    for job in asked:
        jobs.put(job)
    lock = threading.Lock()
    with tqdm(total=sum(len(roads) for _, roads in asked), desc="roads", smoothing=0.05) as bar:

        def take() -> None:
            with contextlib.closing(Server(**limits)) as server, contextlib.suppress(queue.Empty):
                while True:
                    for row in server.tried(*jobs.get_nowait()):
                        with lock:
                            keep(row)
                            bar.set_postfix_str(f"{row.network} {row.road}: {row.stage}")
                            bar.update()

        threads = [threading.Thread(target=take) for _ in range(num_workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def kept_rows(path: Path) -> list[Row]:
    """Rows of a file of JSON lines, the last one of each network and road; a line that was cut short is left out."""
    found: dict[tuple[str, str, int], Row] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, TypeError):
                row = Row(**json.loads(line))
                found[row.key] = row
    return list(found.values())


# ---- what was expected -----------------------------------------------------------------------------------------------
def surprises(rows: Iterable[Row], expected: Sequence[Mapping[str, str]]) -> list[str]:
    """Lines about rows that are right and were not to be, or the other way, or that fail at another place or line."""
    known = {(e["network"], e["road"]): e for e in expected}
    found = []
    for row in rows:
        entry = known.get((row.network, row.road))
        where = f"{row.network} {row.road}"
        if entry is None and row.stage != "right":
            found.append(f"{where}: {row.stage}: {row.line}; expected it to be right")
        elif entry is not None and row.stage == "right":
            found.append(f"{where}: right; expected {entry['stage']}: {entry['line']}")
        elif entry is not None and (row.stage != entry["stage"] or entry["line"] not in row.line):
            found.append(f"{where}: {row.stage}: {row.line}; expected {entry['stage']}: {entry['line']}")
    return found


def expected_failures() -> list[dict[str, str]]:
    """What is not right, with network, road, stage, a part of the line, and the cause."""
    content: list[dict[str, str]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return content


# ---- the page --------------------------------------------------------------------------------------------------------
def figures_of(rows: Sequence[Row]) -> dict[str, Figure]:
    """Shares that are right of those that PyTorch exports and that choose no regions, and how often numbers are wrong
    or no line is said."""
    counts = collections.Counter(row.verdict for row in rows)
    num = sum(row.stage not in ("make", "export") for row in rows)
    return {
        "right": Figure(counts["right"] / num if num else None, _GOAL),
        "wrong": Figure(counts["wrong"], 0, lower_is_better=True),
        "crashes": Figure(counts["crash"], 0, lower_is_better=True),
        "rows": Figure(len(rows)),
    }


def table(content: Mapping[str, Any]) -> str:
    """A machine's result as text for the page: counts by library and road, then every network that is not right."""
    rows = [Row(**row) for row in content["rows"]]
    expected = {(e["network"], e["road"]): e["cause"] for e in expected_failures()}
    names = {row.network for row in rows}
    lines = [
        f"On {content['machine']['cpu'].partition(' (')[0]}, {content['date'][:10]}: {len(names)} of "
        f"{content['num_networks']} networks, {len(rows)} roads ({_versions(content['libraries'])}).",
        "",
        "| networks | road | tried | right | refused in one line | wrong | crash | not exported | median s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for library in sorted({_library(row) for row in rows}):
        for road in (*ROADS, "file"):
            some = [row for row in rows if _library(row) == library and row.road == road]
            if some:
                counts = collections.Counter(row.verdict for row in some)
                seconds = sorted(sum(row.seconds.values()) for row in some)[len(some) // 2]
                cells = [counts[v] for v in ("right", "refused", "wrong", "crash", "unexported")]
                lines.append(f"| {library} | {road} | {len(some)} | {' | '.join(map(str, cells))} | {seconds:.0f} |")
    right = [row for row in rows if row.stage == "right"]
    worst = max((row.error or 0.0 for row in right), default=0.0)
    lines += ["", f"Largest error of the {len(right)} that are right: {worst:.1e} of an output's largest number."]
    shares = {row.network: row.without["products"] for row in right if row.without["products"] > _MUCH}
    if shares:
        text = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda s: -s[1]))
        lines += [f"More than 5 % of the multiplications in operators without a schedule: {text}."]
    failures: dict[tuple[str, str, str], list[str]] = collections.defaultdict(list)
    for row in rows:
        if row.stage != "right":
            cause = expected.get((row.network, row.road), row.line)
            failures[row.network, row.stage, _cell(cause)].append(row.road)
    if failures:
        lines += ["", "| not right | roads | stage | cause |", "|---|---|---|---|"]
        lines += [f"| {n} | {', '.join(roads)} | {s} | {c} |" for (n, s, c), roads in sorted(failures.items())]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "/")


def _library(row: Row) -> str:
    return "files" if row.road == "file" else row.network.partition(":")[0]


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "torchvision", "timm", "onnx") if name in versions
    )


def write_page(path: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Put the tables of all kinds of machines between the page's markers.

    Raises:
        SystemExit: the markers are not there.
    """
    text, (begin, end) = path.read_text(encoding="utf-8"), _MARKERS
    if begin not in text or end not in text:
        raise SystemExit(f"expected {begin} and {end} in {path}")
    tables = "\n\n".join(table(results[kind]) for kind in sorted(results))
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    path.write_text(pattern.sub(lambda _: f"{begin}\n{tables}\n{end}", text), encoding="utf-8")


def package_versions() -> dict[str, str]:
    """Versions of the libraries that the networks are of."""
    from importlib import metadata

    found = {}
    for name in ("torch", "torchvision", "timm", "onnx", "onnxscript"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name).partition("+")[0]
    return found


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one small network by one road")
    parser.add_argument(
        "--only", nargs="+", default=[], help="networks whose name has one of these in it, in this order"
    )
    parser.add_argument("--roads", nargs="+", choices=(*ROADS, "file"), help="all three, or the files themselves")
    parser.add_argument("--files", type=Path, help="a folder: its ONNX files instead")
    parser.add_argument("--size", type=int, default=0, help="rows and columns of images, instead of the library's")
    parser.add_argument("--workers", type=int, default=1, help="networks at a time")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="the most that one road may take")
    parser.add_argument("--gib", type=int, default=_GIB, help="memory that one network may take")
    parser.add_argument("--json", type=Path, default=Path("runs/model_matrix.jsonl"), help="where rows are kept")
    parser.add_argument("--write", action="store_true", help="put the results into docs/models.md; nothing is run")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse(arguments)
    roads = given.roads or (("file",) if given.files else ROADS)
    if given.serve:
        serve(given.gib, given.seconds)
        return
    if given.write:
        write_page(PAGE, read_results("model_matrix"))
        return
    limits = {"seconds": given.seconds, "gib": given.gib}
    if given.quick:
        rows: list[Row] = []
        all_tried([(Subject(*QUICK), ROADS[:1])], 1, rows.append, **limits)
        finish("model_matrix", figures_of(rows), True, {})
        return
    every = subjects(given.files)
    named = [next((s for s in every if s.name == only), None) for only in given.only]
    chosen = [s for s in named if s is not None] or [s for s in every if not given.only]
    chosen += [s for s in every if s not in chosen and any(only in s.name for only in given.only)]
    chosen = [Subject(s.name, given.size) for s in chosen]
    done = {row.key for row in kept_rows(given.json)}
    left = [(s, [r for r in roads if (s.name, r, s.size) not in done]) for s in chosen]
    given.json.parent.mkdir(parents=True, exist_ok=True)
    with open(given.json, "a", encoding="utf-8") as file:

        def keep(row: Row) -> None:
            print(json.dumps(asdict(row)), file=file, flush=True)

        all_tried([(s, r) for s, r in left if r], given.workers, keep, **limits)
    kept = sorted(kept_rows(given.json), key=lambda row: row.key)
    for row in kept:
        if row.stage != "right":
            print(f"{row.network} {row.road}: {row.stage}: {row.line}")
    for line in surprises(kept, expected_failures()):
        print(f"unexpected: {line}")
    extra = {"num_networks": len(every), "libraries": package_versions(), "rows": [asdict(row) for row in kept]}
    finish("model_matrix", figures_of(kept), bool(given.files or given.size), extra)


if __name__ == "__main__":
    main()
