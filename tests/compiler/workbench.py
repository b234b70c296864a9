"""Random operators and blocks, devices of every kind, and what runs them: shared by the tests of this folder."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from hypothesis import strategies as st

from chanas.compiler.backends import schedule_space
from chanas.compiler.cases import ReferenceCase, block_case, operator_case, random_network
from chanas.compiler.cpu.blocks import schedule_packed_operator
from chanas.compiler.cpu.lowering import pipeline
from chanas.compiler.cpu.module import program_module
from chanas.compiler.program import Program
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.arch import Architecture, SearchSpace, StageSpec, SubSpace
from chanas.core.blocks import BlockConfig, computing
from chanas.core.codec import to_json
from chanas.core.effort import TableEffort
from chanas.core.latency import LatencyLUT, LUTHeader, LUTRow
from chanas.core.processor import host_processor
from chanas.core.progress import PlainLines
from chanas.core.target import HardwareTarget, in_dtype, tvm_version
from chanas.core.task import Task
from chanas.devices.host import load_target
from chanas.devices.timing import TimingSettings
from chanas.files.run import RunDirectory
from chanas.measuring.candidates import Candidate, CandidatePipeline
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import (
    Answer,
    BlockAt,
    Build,
    OperatorAt,
    OperatorsAt,
    Outcome,
    Timing,
    What,
    WorkerError,
)
from chanas.measuring.worker.process import WORKERS
from chanas.operators.epilogues import PLAIN, USUAL
from chanas.operators.steps import device_workloads
from chanas.operators.workload import Operator, Workload
from chanas.prescheduler.tables.lut import PrescheduleSummary, preschedule
from chanas.prescheduler.tables.networks import NetworkJob
from chanas.prescheduler.tuning.preflight import PREFIX
from chanas.testing.families import runs_here

HOST = load_target("cpu")
OPERATORS: tuple[Operator, ...] = ("conv", "blockconv", "winograd", "pointwise", "depthwise", "pool", "winograd2")
ANY_EPILOGUE = (*PLAIN, "leaky0.01", "leaky0.1")
WORKLOAD = Workload("pointwise", 4, 8, 32)
QUICK = TimingSettings(repeats=1, min_repeat_s=1e-6)
# Powers of two, odd sizes and primes: what a split has to divide.
SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 13)

# Two stages of one block, of which one has squeeze-excite: few operators, small ones.
NANO = SearchSpace(
    name="nano",
    resolutions=(8,),
    width_multipliers=(1.0, 2.0),
    kernel_sizes=(3,),
    expand_ratios=(2,),
    depths=(1,),
    in_channels=3,
    stem_width=8,
    stem_stride=2,
    first_width=8,
    stages=(
        StageSpec(width=8, stride=1, activation="relu", use_se=False),
        StageSpec(width=16, stride=2, activation="hswish", use_se=True),
    ),
    head_width=16,
    feature_width=16,
)
# Sixteen architectures of the same blocks, enough to search among.
CHOICES = dataclasses.replace(NANO, name="choices", width_multipliers=(1.0,), kernel_sizes=(3, 5), expand_ratios=(2, 3))
NUM_CLASSES = 5


def device(lanes: int = 16, num_threads: int = 1) -> HardwareTarget:
    """This machine, used with vectors of `lanes` values: 32 registers of 16, or 16 smaller ones."""
    return dataclasses.replace(
        HOST, num_threads=num_threads, vector_lanes=lanes, num_vector_registers=32 if lanes == 16 else 16
    )


def plant_worker(patch: pytest.MonkeyPatch, kind: str, command: tuple[str, ...]) -> None:
    """Have another program compile and time for devices of a kind."""
    patch.setitem(WORKERS, kind, command)


DEVICES = {f"{lanes}-lanes-{threads}-threads": device(lanes, threads) for lanes in (16, 8, 4) for threads in (1, 2)}
NEON = dataclasses.replace(device(lanes=4), num_vector_registers=32)
"""This machine, used as an ARM core is: short vectors, and as many registers as long ones have."""
DEVICES["neon"] = NEON
BF16 = dataclasses.replace(device(), name="cpu-bf16", dtype="bfloat16")
MATRICES = dataclasses.replace(BF16, name="cpu-bf16", has_matrices=True)
"""The same with matrix registers."""
INT8 = dataclasses.replace(device(), name="cpu-int8", dtype="int8")
"""The same in whole numbers, without an instruction for four products: what every processor with AVX2 runs."""
INT8_MATRICES = dataclasses.replace(INT8, has_matrices=True)
"""The same with matrix registers."""
needs_bfloat16 = pytest.mark.skipif(not runs_here(BF16), reason="this processor lacks AVX512_BF16")
needs_int8 = pytest.mark.skipif("avx2" not in host_processor().used_flags, reason="this processor lacks AVX2")
needs_matrices = pytest.mark.skipif(
    not (runs_here(MATRICES) and runs_here(INT8_MATRICES)), reason="this processor lacks AMX"
)


# ---- random operators and points ------------------------------------------------------------------------------------
def random_workload(op: Operator, rng: np.random.Generator, max_channels: int = 200) -> Workload:
    """An operator of small odd and even sizes, with channels that seldom fill their vectors."""
    size, epilogue = int(rng.choice(SIZES)), USUAL[rng.integers(len(USUAL))]
    channels = 8 * int(rng.integers(1, max_channels // 8 + 1))
    out_channels = 8 * int(rng.integers(1, max_channels // 8 + 1))
    kernel_size, stride = int(rng.choice([3, 5, 7])), int(rng.choice([1, 2]))
    if op == "pool":
        return Workload(op, size, channels, channels)
    if op == "depthwise":
        return Workload(op, size, channels, channels, kernel_size, stride, epilogue)
    if op == "winograd2":
        kernel_size, stride = min(kernel_size, 5), 1
    if op in ("blockconv", "winograd", "winograd2"):
        kernel_size = int(rng.choice([1, 3, 5, 7])) if op == "blockconv" else kernel_size
        channels = int(rng.integers(1, 1 + max_channels // 2))
        return Workload(op, size, channels, out_channels, kernel_size, stride, epilogue)
    if op == "conv":
        return Workload(op, size, int(rng.choice([1, 3])), out_channels, kernel_size, stride, epilogue)
    if rng.random() < 0.2:
        out_channels = int(rng.integers(2, 40))  # a number of classes
    scaled, residual = bool(rng.integers(2)), bool(rng.integers(2))
    return Workload(op, size, channels, out_channels, 1, 1, epilogue, scaled, residual)


generators = st.integers(0, 2**32 - 1).map(np.random.default_rng)
workloads = st.builds(random_workload, st.sampled_from(OPERATORS), generators)


def random_points(block: BlockConfig, target: HardwareTarget, rng: np.random.Generator) -> list[Point]:
    """A random point for each operator of a block."""
    return [schedule_space(w, target).sample(1, rng)[0] for w in device_workloads(block, target)]


def save_module(blocks: Sequence[BlockConfig], target: HardwareTarget, folder: Path) -> Path:
    """The module of a chain of blocks with random schedules, as it is stored."""
    rng = np.random.default_rng(0)
    points = {block: random_points(block, target, rng) for block in dict.fromkeys(blocks)}
    program = Program.from_blocks(blocks, [points[block] for block in blocks], target)
    (folder / "module.json").write_text(program_module(program, {}, target).to_json())
    return folder / "module.json"


def in_a_network(
    workload: Workload, point: Point, target: HardwareTarget, *cases: ReferenceCase
) -> list[npt.NDArray[Any]]:
    """What an operator of a network gives for each case: its parameters are one array."""
    function, found = schedule_packed_operator(workload, point, target), []
    library = tvm.tirx.build(function, target.tvm_target(), pipeline())
    for case in cases:
        arguments = list(case.arguments)
        if workload.has_weights:
            arguments[1:3] = [np.concatenate([part.ravel() for part in arguments[1:3]])]
        out = tvm.runtime.tensor(np.zeros_like(case.expected))
        library["main"](*(tvm.runtime.tensor(a) for a in arguments), out)
        found.append(out.numpy())
    return found


# ---- real measurements ----------------------------------------------------------------------------------------------
class Workbench:
    """Builds operators and blocks in worker processes and compares what they compute with PyTorch."""

    def __init__(self, pool: WorkerPool, folder: Path) -> None:
        self.pool, self.folder = pool, folder
        self._count = 0

    def path(self, suffix: str) -> Path:
        """A path that was never used before (workers know cases and libraries by their paths)."""
        self._count += 1
        return self.folder / f"{self._count}{suffix}"

    def save(self, case: ReferenceCase) -> Path:
        path = self.path(".npz")
        case.save(path)
        return path

    def candidate(
        self,
        what: Workload | BlockConfig,
        points: Any,
        target: HardwareTarget = HOST,
        case: ReferenceCase | None = None,
    ) -> Candidate[int]:
        """An operator at a point or a block at one point per operator, by default against its own reference case."""
        library = self.path(".so")
        if isinstance(what, Workload):
            case = case or operator_case(what, target)
            built: What = OperatorAt(what, points)
        else:
            case = case or block_case(what, target)
            built = BlockAt(what, points)
        return Candidate(
            token=self._count, what=built, target=target, library=library, case=self.save(case), settings=QUICK
        )

    def run(self, candidates: Iterable[Candidate[int]]) -> list[Outcome]:
        """One outcome per candidate, in order."""
        line: CandidatePipeline[int] = CandidatePipeline(self.pool)
        tokens = []
        for candidate in candidates:
            line.submit(candidate)
            tokens.append(candidate.token)
        outcomes = {}
        while line.num_in_flight:
            outcomes.update({c.token: o for c, o in line.finished()})
        return [outcomes[t] for t in tokens]


# ---- measurements that nobody makes ---------------------------------------------------------------------------------
def landscape_seconds(space: ScheduleSpace, point: Point) -> float:
    """A machine that wants some 12 accumulators and a long unrolled reduction; bigger 1×1 convolutions take longer."""
    named = space.groups(point)
    accumulators = named["split_m"][-1] * named["split_n"][-1]
    log_s = 0.3 * math.log2(accumulators / 12) ** 2 - 0.15 * math.log2(named["split_k"][-1]) + 0.1 * named["order"][0]
    return space.workload.num_flops * 1e-11 * math.exp(log_s)


Seconds = Callable[[Any], float | str]
"""Seconds of what a build request asked for, or the error of its timing."""


class Again(OperatorAt):
    """What a `SyntheticPool` asks the seconds of where a point is timed again, in turns."""


def family_of(asked: Build) -> str | None:
    """The family of the operator that a request compiles, if it compiles one."""
    return asked.what.workload.op if isinstance(asked.what, OperatorAt) else None


def block_of(asked: Build) -> BlockConfig | None:
    """The block that a request compiles, if it compiles one."""
    return asked.what.block if isinstance(asked.what, BlockAt) else None


def synthetic_seconds(asked: Build) -> float | str:
    """Between 1 and 2 µs, the same whenever the same thing is asked."""
    return hashed_seconds(*(to_json(getattr(asked.what, k, None)) for k in ("workload", "block", "point", "points")))


def hashed_seconds(*what: Any) -> float:
    """Between 1 and 2 µs, by a hash of what can be written as JSON."""
    return 1e-6 * (1.0 + zlib.crc32(json.dumps(what, sort_keys=True).encode()) / 2**32)


def timed(seconds: float, spread_s: float = 0.0, device: int = 0) -> Answer:
    """A worker's answer about a program that computes the right thing."""
    return Answer(to_json(Timing(seconds, spread_s, 1, 0.0)), None, 0.1, device)


def failed(error: str) -> Answer:
    """A worker's answer that is an error, as it is stored."""
    return Answer(None, WorkerError.read(error), 0.1)


def answered(answer: Answer) -> Future[Answer]:
    future: Future[Answer] = Future()
    future.set_result(answer)
    return future


class SyntheticPool:
    """Stands where a `WorkerPool` stands and invents the seconds; remembers what it was asked to build and to time.

    `seconds` gets the request of the build and returns seconds, or the error of the measurement; what is measured in
    turns is asked for one by one, as `Again`, and one error is that of all. `code`, if there is one, gets the
    request of the build too. Operators of the check before the tuning work, whatever `seconds` says, unless
    `check_error` has an error for the request of their build; they are listed apart, in `checked`. `requests` has what
    was asked of the timing of all others but the canary.
    """

    num_builders = num_devices = 1

    def __init__(self, seconds: Seconds = synthetic_seconds, overlap: bool = True):
        self.seconds, self.overlap = seconds, overlap
        self.built: list[Any] = []
        self.checked: list[Any] = []
        self.check_error: Callable[[Any], str | None] = lambda _asked: None
        self.requests: list[Any] = []
        self.timed: list[Path] = []
        self.turns: list[Build] = []
        self.code: Callable[[Build], str] | None = None
        self.timing_s = self.building_s = 0.0
        self.num_renewed = 0
        self.compute = None
        self.expected: list[int] = []

    def renew_timers(self) -> None:
        self.num_renewed += 1

    def expect(self, num_builds: int) -> None:
        self.expected.append(num_builds)

    def __enter__(self) -> SyntheticPool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def build(self, request: Any, timeout_s: float) -> Future[Answer]:
        self.building_s += 0.1
        if isinstance(request.what, OperatorsAt):
            self.turns.append(request)
            request.path.mkdir(exist_ok=True)
        elif is_preflight(request.path):
            self.checked.append(request)
        else:
            self.built.append(request)
            request.path.touch()
        is_one = isinstance(request.what, OperatorAt)
        return answered(Answer({"code": self.code(request)} if self.code and is_one else None, None, 0.1))

    def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Future[Answer]:
        self.timing_s += 0.1
        if is_preflight(request.library):
            error = self.check_error(next(b for b in reversed(self.checked) if b.path == request.library))
            return answered(timed(1e-6) if error is None else failed(error))
        if request.library.name != "canary.so":
            self.requests.append(request)
        if request.num is not None:
            return answered(self._measure_in_turns(request.library))
        self.timed.append(request.library)
        seconds = self.seconds(next(b for b in reversed(self.built) if b.path == request.library))
        return answered(failed(seconds) if isinstance(seconds, str) else timed(seconds))

    def _measure_in_turns(self, library: Path) -> Answer:
        asked = next(b for b in reversed(self.turns) if b.path == library)
        assert isinstance(asked.what, OperatorsAt)
        members = []
        for point in asked.what.points:
            seconds = self.seconds(dataclasses.replace(asked, what=Again(asked.what.workload, point)))
            if isinstance(seconds, str):
                return failed(seconds)
            members.append(to_json(timed(seconds)))
        return Answer(members, None, 0.1)


def is_preflight(library: Path) -> bool:
    """Whether a library is of the check that comes before the tuning."""
    return library.name.startswith(PREFIX)


def invented(library: Path, token: Any = 0, **settings: Any) -> Candidate[Any]:
    """A candidate for a pool that builds and times nothing: what it is of says nothing."""
    case, what = library.with_suffix(".npz"), OperatorAt(WORKLOAD, ())
    return Candidate(token=token, what=what, target=HOST, library=library, case=case, settings=QUICK, **settings)


# ---- tables and networks --------------------------------------------------------------------------------------------
def random_lut(space: SearchSpace, blocks: Iterable[BlockConfig], target: HardwareTarget, seed: int = 0) -> LatencyLUT:
    """A table with a random schedule for every operator."""
    rng = np.random.default_rng(seed)
    rows = {}
    for block in blocks:
        keys = [w.key for w in device_workloads(block, target)]
        rows[block.key] = LUTRow(1e-5, 1e-7, 1, tuple(zip(keys, random_points(block, target, rng), strict=True)))
    return LatencyLUT(LUTHeader(target, tvm_version(), space.name, space.digest, target.dtype, target.batch), rows)


def mixed_lut(
    space: SearchSpace, blocks: Iterable[BlockConfig], target: HardwareTarget = HOST, seed: int = 0
) -> LatencyLUT:
    """The same of blocks in several dtypes: a table of each, that of float32 first."""
    known = tuple(blocks)
    first, *others = (
        random_lut(space, [b for b in known if b.dtype == dtype], in_dtype(target, dtype), seed)
        for dtype in dict.fromkeys(("float32", *(b.dtype for b in known)))
    )
    return dataclasses.replace(first, others={lut.header.dtype: lut for lut in others})


def in_dtypes(architecture: Architecture, letters: str) -> Architecture:
    """An architecture whose blocks are in dtypes, by their letters."""
    return Architecture.from_key(f"{architecture.key}_{letters}")


def assert_legal(lut: LatencyLUT, blocks: Iterable[BlockConfig], target: HardwareTarget) -> None:
    """The rows of blocks have points of their operators' spaces."""
    for block in blocks:
        for workload, (key, point) in zip(device_workloads(block, target), lut.rows[block.key].schedules, strict=True):
            assert key == workload.key
            assert schedule_space(workload, target).contains(point)


def network_job(blocks: Sequence[BlockConfig], library: Path, seed: int = 0, batch: int = 1) -> NetworkJob:
    """A network with random weights and BN statistics, and PyTorch's logits on random images."""
    return NetworkJob(tuple(blocks), *random_network(computing(blocks), seed, batch), library)


def interrupted_bar(num_updates: int) -> Callable[..., PlainLines]:
    """Progress bars at whose `num_updates`-th step somebody presses Ctrl-C."""
    steps = itertools.count(1)

    class Interrupted(PlainLines):
        def update(self, n: float | None = 1) -> bool | None:
            if next(steps) == num_updates:
                raise KeyboardInterrupt
            return super().update(n)

    def new_bar(total: int, desc: str, unit: str, enabled: bool = True, **options: Any) -> PlainLines:
        return Interrupted(time.monotonic, total=total, desc=desc, unit=unit, disable=not enabled, **options)

    return new_bar


def fill_table(
    run: RunDirectory,
    space: SearchSpace,
    target: HardwareTarget,
    num_classes: int,
    *,
    sub_spaces: Sequence[SubSpace] = (),
    progress: bool = False,
    **options: Any,
) -> PrescheduleSummary:
    """The prescheduler with what differs from the default effort, but nothing calibrated by default."""
    names = options.keys() & {"trials", "early_stopping", "tuner", "calibrate"}
    effort: dict[str, Any] = {"calibrate": 0} | {name: options.pop(name) for name in names}
    how = TableEffort(sub_spaces=tuple(s.key for s in sub_spaces), **effort)
    return preschedule(run, Task(space, num_classes), target, how, progress=progress, **options)
