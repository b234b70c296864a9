"""A tuned network, or a bundle, timed beside other runtimes: same weights, inputs, threads and cores, in turns."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chanas.bundle.benchmark import MODULE_ALONE, BenchmarkRow, bench_images, benchmark, noted
from chanas.core.usage import SHORT_DTYPES
from chanas.devices.cores import limited_to
from chanas.devices.timing import Call as TimedCall
from chanas.devices.timing import Clock, TimingSettings, seconds_per_call, time_in_turns
from chanas.errors import ModelError
from chanas.files.scratch import scratch_folder
from chanas.operators.precision import FLOAT32
from chanas.workflows.models.contenders import (
    CONTENDERS,
    IN_OTHER_DTYPES,
    TOLERANCE,
    Call,
    Subject,
    outputs_of,
    relative_error,
)
from chanas.workflows.models.untuned import untuned_network

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign
    from chanas.bundle.tuned import TunedNetwork
    from chanas.core.arrays import Array
    from chanas.models.sources.model import OpenedModel

RUNTIMES = {name: make for name, make in CONTENDERS.items() if name in ("ONNX Runtime", "OpenVINO", "LiteRT")}
"""Those that are no PyTorch."""
UNTUNED = "TVM untuned"
OWN = "chanas"
_NUM_WARM_UP, _MIN_ROUND_S = 3, 0.01
# Largest error of contenders in bfloat16 or int8, as a share of the largest output: of random weights it is large.
_ROUNDED = 0.2
_PAUSE_S = 0.02
"""Thread pools spin for a while after their last call; the next contender waits until the cores are its own."""


def open_origin(network: TunedNetwork, model: str | Path | None = None) -> OpenedModel:
    """Open the network that a tuned one was made from: at the place that it was tuned from, or `model`.

    Raises:
        ModelError: it is not there, cannot be opened, or is another one than was tuned.
        CheckpointError: the weights of a library's network, or its bundle, are missing or damaged.
    """
    from chanas.bundle.tuned import BUNDLE, LIBRARIES
    from chanas.files.writing import sha256_of
    from chanas.models.sources.model import IMAGE
    from chanas.models.sources.opening import open_model

    origin, inputs = network.document["origin"], network.document["inputs"]
    of_library = origin["kind"] in LIBRARIES
    source = model or origin.get("source") or (f"{origin['kind']}:{origin['name']}" if of_library else None)
    if source is None:
        raise ModelError(f"{network.folder} does not say where {origin['name']} lay; give it as --model FILE")
    path = Path(source)
    if model is None and not of_library and not path.exists():
        raise ModelError(f"{path}, which {network.folder} was tuned from, is not there; give it as --model FILE")
    other = ModelError(
        f"{source} is not the network that {network.folder} was tuned from, or gives other weights here (expected "
        f"SHA-256 {origin['sha256'][:16]}…); give that one as --model, or run `chanas tune {source}`"
    )
    if path.is_file() and sha256_of(path) != origin["sha256"]:
        raise other
    shapes = {IMAGE if of_library else entry["name"]: tuple(entry["shape"]) for entry in inputs}
    if origin["kind"] == BUNDLE:  # it has one shape
        shapes = {}
    weights = origin.get("weights") if of_library and model is None else None
    opened = open_model(source, shapes, None if weights is None else Path(weights))
    if any(opened.origin.get(fact) != origin.get(fact) for fact in ("sha256", "architecture")):
        raise other
    return opened


@dataclass(frozen=True)
class BenchSettings:
    """The contenders that are timed beside a tuned network, and the rounds."""

    contenders: Mapping[str, Callable[[Subject], Call]] = field(default_factory=lambda: CONTENDERS)
    with_untuned: bool = True
    rounds: int = 40


DEFAULT_SETTINGS = BenchSettings()


def benchmark_tuned(
    network: TunedNetwork, opened: OpenedModel | None, settings: BenchSettings = DEFAULT_SETTINGS
) -> list[BenchmarkRow]:
    """Time the compiled network as Python calls it and alone and, where `opened` is what it was tuned from, every other
    runtime on the same inputs, threads and cores; of a network tuned in bfloat16 or int8 also in it, where they can. A
    contender whose outputs differ from the framework's has a note.

    Raises:
        TargetError: it was compiled for another device.
    """
    import torch

    inputs = (opened or network).random_inputs()
    expected = None if opened is None else opened.answer(inputs)
    num_threads = network.target.num_threads
    calls: dict[str, Call] = {OWN: functools.partial(network.run, *inputs), MODULE_ALONE: network.program()}
    calls[OWN]()  # the module alone runs on these inputs
    notes: dict[str, str] = {}
    with limited_to(num_threads), torch.inference_mode(), scratch_folder() as scratch:
        if opened is not None:
            subject = Subject(opened.program, _onnx_place(opened, scratch), inputs, num_threads, remarks=notes)
            for name, make in settings.contenders.items():
                with noted(notes, name):
                    calls[name] = make(subject)
            rounded = dataclasses.replace(subject, dtype=network.target.dtype)
            for name in () if network.was_quantised else IN_OTHER_DTYPES.get(rounded.dtype, ()):
                if name in calls:
                    in_dtype = f"{name} {network.target.dtype_name}"
                    with noted(notes, in_dtype):
                        calls[in_dtype] = settings.contenders[name](rounded)
        summaries = time_in_turns(
            [[(call, ())] for call in calls.values()],
            _NUM_WARM_UP,
            TimingSettings(settings.rounds, _MIN_ROUND_S),
            clock_of(num_threads),
        )
        medians = {name: summary.seconds for name, summary in zip(calls, summaries, strict=True)}
        spreads = {name: summary.spread_s for name, summary in zip(calls, summaries, strict=True)}
        if opened is not None and settings.with_untuned:
            with noted(notes, UNTUNED):
                outputs, medians[UNTUNED] = untuned_network(opened, network.target, scratch)
                calls[UNTUNED] = lambda: outputs
        if expected is not None:
            notes |= _differing(calls, expected, TOLERANCE if network.target.dtype == FLOAT32.dtype else _ROUNDED)
    rows = [
        BenchmarkRow(name, m, m / medians[OWN], notes.get(name, ""), spreads.get(name)) for name, m in medians.items()
    ]
    return rows + [BenchmarkRow(name, None, None, note) for name, note in notes.items() if name not in medians]


def benchmark_bundle(
    bundle: CoDesign,
    with_compile: bool = True,
    rounds: int = 40,
    shared: bool = False,
    runtimes: Mapping[str, Callable[[Subject], Call]] = RUNTIMES,
) -> list[BenchmarkRow]:
    """Time a bundle's module beside PyTorch (`benchmark`) and, on a processor, beside `runtimes` of its network in
    float32 and in the other dtypes that its blocks are in.

    Raises:
        TargetError: the module is for another device, or another process uses the GPU.
    """
    if bundle.target.gpu is not None:
        return benchmark(bundle, with_compile, rounds, shared)
    images, num_threads = bench_images(bundle), bundle.target.num_threads
    remarks: dict[str, str] = {}
    with scratch_folder() as scratch:

        @functools.cache
        def subject() -> Subject:
            import torch

            program = torch.export.export(bundle.torch_module(), (torch.from_numpy(images),))
            return Subject(program, scratch / "network.onnx", [images], num_threads, remarks=remarks)

        def checked(make: Callable[[Subject], Call]) -> Call:
            call = make(subject())
            error = relative_error(outputs_of(call()), [bundle.torch_logits(images)])
            if not error <= TOLERANCE:
                raise ModelError(f"outputs differ by {error:.1e} of the largest")
            return call

        def in_dtype(make: Callable[[Subject], Call], dtype: str) -> Call:
            return make(dataclasses.replace(subject(), dtype=dtype))

        others = {name: functools.partial(checked, make) for name, make in runtimes.items()}
        for dtype in sorted(bundle.dtypes):
            for name in IN_OTHER_DTYPES.get(dtype, ()):
                if name in runtimes:
                    others[f"{name} {SHORT_DTYPES[dtype]}"] = functools.partial(in_dtype, runtimes[name], dtype)
        rows = benchmark(bundle, with_compile, rounds, shared, others, clock_of(num_threads))
    return [dataclasses.replace(row, note=row.note or remarks.get(row.name, "")) for row in rows]


def clock_of(num_threads: int) -> Clock:
    """The clock for contenders that have so many threads."""
    return seconds_per_call if num_threads == 1 else _after_a_pause


def _after_a_pause(turns: Iterator[TimedCall], num_calls: int) -> float:
    time.sleep(_PAUSE_S)
    seconds_per_call(turns, 1)  # wakes its own threads
    return seconds_per_call(turns, num_calls)


def _onnx_place(opened: OpenedModel, scratch: Path) -> Path:
    return Path(opened.origin["source"]) if opened.origin["kind"] == "onnx" else scratch / "network.onnx"


def _differing(calls: Mapping[str, Call], expected: list[Array], tolerance: float) -> dict[str, str]:
    """Notes on contenders whose outputs are others."""
    notes = {}
    for name, call in calls.items():
        if name == MODULE_ALONE:  # gives outputs where TVM keeps them, and is the same program as chanas
            continue
        error = relative_error(outputs_of(call()), expected)
        if not error <= tolerance:
            notes[name] = f"outputs differ by {error:.1e} of the largest"
    return notes
