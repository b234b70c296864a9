"""The contract of operator families."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.compiler.backends import backend_of, case_of, schedule_operator, schedule_space
from chanas.compiler.cases import ReferenceCase, operator_case
from chanas.compiler.cuda.emulator import sequential_error
from chanas.compiler.space import Point, ScheduleSpace
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.devices.timing import TimingSettings
from chanas.errors import ScheduleError, TargetError
from chanas.measuring.candidates import Candidate, CandidatePipeline
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import OperatorAt
from chanas.operators.layout import operator_inputs
from chanas.operators.precision import precision_of
from chanas.operators.workload import Workload

Case = tuple[Workload, HardwareTarget]
_QUICK = TimingSettings(repeats=1, min_repeat_s=1e-6)
_PARAMETERS = ("weights", "bias", "scale", "grids")


def covering_points(space: ScheduleSpace[Any], rng: np.random.Generator) -> list[Point]:
    """A few points that together take every option of every coordinate that any legal point takes."""
    seen: set[tuple[str, tuple[int, ...]]] = set()
    chosen = []
    for point in space.shuffled(rng):
        options = set(space.groups(point).items())
        if not options <= seen:
            seen |= options
            chosen.append(point)
    return chosen


def runs_here(target: HardwareTarget) -> bool:
    """True if this processor has the instructions of the target's dtype; kernels of GPUs are carried out in numpy."""
    if target.gpu is not None or target.dtype == "float32":
        return True
    try:
        own = load_target("cpu", 1, target.dtype_name)
        return (own.has_dots or not target.has_dots) and (own.has_matrices or not target.has_matrices)
    except TargetError:
        return False


class OperatorBench:
    """Builds operators at points in worker processes, and compares what they compute with PyTorch.

    Has as many workers as numbers of threads were asked for; they end with the context.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._pools = folder, dict[int, WorkerPool]()
        self._num_files = 0

    def __enter__(self) -> OperatorBench:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools.values():
            pool.__exit__(None, None, None)

    def wrong(self, case: Case, points: Sequence[Point], odd: Sequence[float] = ()) -> dict[Point, object]:
        """The points that compute something else than PyTorch, and how; the input has numbers such as NaN if `odd` has
        some."""
        workload, target = case
        if target.gpu is not None:
            errors = {p: sequential_error(workload, p, target, odd) for p in points}
            return {p: e for p, e in errors.items() if not e < precision_of(workload.dtype).operator_tolerance}
        layout = backend_of(target).families().of(workload).layout(target)
        outcomes = self.outcomes(case, points, operator_case(workload, target, odd, layout))
        return {point: error for point, error in outcomes.items() if error is not None}

    def outcomes(self, case: Case, points: Sequence[Point], expected: ReferenceCase) -> dict[Point, object]:
        """The end of each point: None where it computes what is expected, or the error."""
        workload, target = case
        if target.num_threads not in self._pools:
            self._pools[target.num_threads] = WorkerPool(
                dataclasses.replace(load_target("cpu"), num_threads=target.num_threads)
            ).__enter__()
        line: CandidatePipeline[Point] = CandidatePipeline(self._pools[target.num_threads])
        saved = self._new_file(".npz")
        expected.save(saved)
        for point in points:
            library = self._new_file(".so")
            what = OperatorAt(workload, point)
            line.submit(Candidate(token=point, what=what, target=target, library=library, case=saved, settings=_QUICK))
        found: dict[Point, object] = {}
        while line.num_in_flight:
            found.update({candidate.token: outcome.error for candidate, outcome in line.finished()})
        return found

    def _new_file(self, suffix: str) -> Path:
        """A path that was never used before: workers know cases and libraries by their paths."""
        self._num_files += 1
        return self._folder / f"{self._num_files}{suffix}"


class FamilyContract:
    """Tests that every operator family passes. Inherit it, and name operators of the family with their targets."""

    cases: Sequence[Case] = ()

    def points(self, case: Case) -> list[Point]:
        """The points whose results are looked at: by default every option of every coordinate is in one."""
        workload, target = case
        return covering_points(schedule_space(workload, target), np.random.default_rng(1))

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """A test of each case."""
        if "case" in metafunc.fixturenames:
            ids = [f"{t.kind}-{t.vector_lanes}-{t.num_threads}t-{w.key}" for w, t in self.cases]
            metafunc.parametrize("case", self.cases, ids=ids)

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorBench]:
        """A bench for the points of all cases."""
        with OperatorBench(tmp_path_factory.mktemp("operators")) as bench:
            yield bench

    def test_points_are_legal_and_distinct_and_read_back(self, case: Case) -> None:
        space = schedule_space(*case)
        points = space.sample(20, np.random.default_rng(1))
        assert 0 < len(points) == len(set(points)) <= 20
        assert points == space.sample(20, np.random.default_rng(1))
        assert all(space.contains(point) and len(point) == space.length for point in points)
        assert [space.encode(space.groups(point)) for point in points] == points
        assert len({space.decode(point) for point in points}) == len(points)
        assert space.contains(space.middle)
        assert space.middle == schedule_space(*case).middle

    def test_what_is_no_point_is_refused_by_name(self, case: Case) -> None:
        workload, _ = case
        space = schedule_space(*case)
        point = space.sample(1, np.random.default_rng(0))[0]
        with pytest.raises(ScheduleError, match=f"{space.length} integers for workload {workload.key}, got 99"):
            space.decode((1,) * 99)
        for i in range(space.length):
            with pytest.raises(ScheduleError, match=workload.key):
                space.decode((*point[:i], -7, *point[i + 1 :]))

    def test_points_have_words_and_features_of_their_own(self, case: Case) -> None:
        space, target = schedule_space(*case), case[1]
        groups = [space.groups(point) for point in space.sample(20, np.random.default_rng(0))]
        features = np.array([backend_of(target).features(space, named, target) for named in groups])
        assert np.isfinite(features).all()
        assert len(np.unique(features, axis=0)) > 0.8 * len(groups)
        assert all(backend_of(target).in_words(named) for named in groups)

    def test_a_program_takes_what_its_case_has(self, case: Case) -> None:
        workload, target = case
        family, found = backend_of(target).families().of(workload), case_of(workload, target)
        *inputs, output = schedule_operator(workload, schedule_space(*case).middle, target).params
        declared = operator_inputs(workload, family.layout(target))
        assert [(a.shape, a.dtype) for a in declared] == [(a.shape, str(a.dtype)) for a in found.arguments]
        assert [(tuple(map(int, p.shape)), str(p.dtype)) for p in inputs] == [(a.shape, a.dtype) for a in declared]
        assert str(output.dtype) == workload.output_storage
        assert np.prod([int(n) for n in output.shape]) >= found.expected.size
        assert found.weights == tuple(i for i, a in enumerate(declared) if a.name in _PARAMETERS)

    def test_points_compute_what_pytorch_computes(self, bench: OperatorBench, case: Case) -> None:
        if not runs_here(case[1]):
            pytest.skip(f"this processor lacks instructions for {case[1].dtype}")
        assert bench.wrong(case, self.points(case)) == {}
