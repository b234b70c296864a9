"""chanas/measuring/candidates.py: every candidate comes out once, with seconds or with the reason why
not."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.compiler.backends import schedule_space
from chanas.compiler.cases import operator_case
from chanas.measuring.candidates import Candidate, CandidatePipeline, time_in_rounds
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import (
    Answer,
    BlockAt,
    Build,
    ErrorKind,
    Measure,
    ModuleFile,
    NetworkAt,
    OperatorAt,
    OperatorsAt,
    Outcome,
    UntunedBlock,
    What,
    WorkerError,
)
from chanas.operators.workload import Workload

from ..compiler.workbench import HOST, NANO, NUM_CLASSES, SyntheticPool, Workbench, answered, failed, invented, timed

WORKLOAD = Workload("depthwise", 8, 24, 24, 3, 1, "relu")
POINTS = schedule_space(WORKLOAD, HOST).points
BLOCK = NANO.smallest.blocks(NANO, NUM_CLASSES)[0]


class WatchedPool:
    """A real pool, told whether it has cores to spare, that notices a build and a timing at the same time."""

    def __init__(self, pool: WorkerPool, overlap: bool) -> None:
        self._pool, self.overlap = pool, overlap
        self.num_builders, self.num_devices = pool.num_builders, pool.num_devices
        self._builds: list[Future[Answer]] = []
        self._timings: list[Future[Answer]] = []
        self.met = False

    def build(self, request: Any, timeout_s: float) -> Future[Answer]:
        self.met = self.met or not all(f.done() for f in self._timings)
        self._builds.append(self._pool.build(request, timeout_s))
        return self._builds[-1]

    def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Future[Answer]:
        self.met = self.met or not all(f.done() for f in self._builds)
        self._timings.append(self._pool.measure(request, timeout_s, device))
        return self._timings[-1]


@pytest.mark.parametrize("overlap", [True, False])
def test_outcomes_are_the_same_whether_builds_overlap_with_timing_or_not(
    workbench: Workbench, pool: WorkerPool, overlap: bool
) -> None:
    wrong = operator_case(WORKLOAD, HOST)
    wrong.expected[0] += 1.0
    candidates = [
        workbench.candidate(WORKLOAD, POINTS[0]),
        workbench.candidate(WORKLOAD, (0, 0)),
        workbench.candidate(WORKLOAD, POINTS[1], case=wrong),
        workbench.candidate(WORKLOAD, POINTS[2]),
        *(workbench.candidate(WORKLOAD, point) for point in POINTS[3:6]),
    ]
    watched: Any = WatchedPool(pool, overlap)
    line: CandidatePipeline[int] = CandidatePipeline(watched)
    for candidate in candidates[:4]:
        line.submit(candidate)
    outcomes, waiting = {}, candidates[4:]
    while waiting or line.num_in_flight:
        for candidate, outcome in line.finished():
            outcomes[candidate.token] = outcome
            if waiting:  # comes while others are being timed
                line.submit(waiting.pop())
    right, unbuilt, false, *also_right = (outcomes[c.token] for c in candidates)
    for outcome in (right, *also_right):
        assert outcome.error is None
        assert outcome.seconds is not None
        assert outcome.max_error is not None
        assert outcome.build_s > 0.0
        assert outcome.measure_s > 0.0
    for outcome, expected in (
        (unbuilt, "ScheduleError: expected a point of "),
        (false, "wrong result: relative error "),
    ):
        assert outcome.error is not None
        assert outcome.error.startswith(expected)
        assert outcome.seconds is None
        assert outcome.spread_s is None
    assert unbuilt.measure_s == 0.0
    assert not any(c.library.exists() for c in candidates)
    assert overlap or not watched.met


def test_a_library_is_kept_on_request(pool: WorkerPool, workbench: Workbench) -> None:
    wanted = workbench.candidate(WORKLOAD, POINTS[0])
    kept = Candidate(**{**vars(wanted), "keep_library": True})
    assert workbench.run([kept])[0].error is None
    assert kept.library.is_file()


@pytest.mark.parametrize(
    ("what", "timing"),
    [
        (OperatorAt(WORKLOAD, (1,)), {}),
        (BlockAt(BLOCK, ((1,),)), {}),
        (OperatorsAt(WORKLOAD, ((1,), (2,)), (None, None)), {"num": 2}),
        (NetworkAt((BLOCK,), (((1,),),)), {"form": "network"}),
        (UntunedBlock(BLOCK), {"form": "network"}),
        (ModuleFile(Path("module.json")), {"form": "module"}),
    ],
    ids=lambda x: type(x).__name__,
)
def test_how_a_candidate_is_built_and_timed_follows_from_what_it_is(what: What, timing: dict[str, Any]) -> None:
    candidate = dataclasses.replace(invented(Path("a.so")), what=what, hopeless_s=2.0)
    assert candidate.build == Build(target=candidate.target, what=what, path=Path("a.so"))
    files = {"library": Path("a.so"), "case": Path("a.npz")}
    assert candidate.timing == Measure(**files, settings=candidate.settings, hopeless_s=2.0, **timing)


def test_a_build_that_takes_too_long_leaves_nothing(tmp_path: Path) -> None:
    class HangingPool(SyntheticPool):
        def build(self, request: Any, timeout_s: float) -> Future[Answer]:
            super().build(request, timeout_s)
            request.path.with_suffix(".o").touch()
            answer: Future[Answer] = Future()
            error = WorkerError(ErrorKind.TIMEOUT, f"{request.call} took more than {timeout_s:g} s")
            answer.set_result(Answer(None, error, timeout_s))
            return answer

    pool: Any = HangingPool()
    line: CandidatePipeline[int] = CandidatePipeline(pool)
    library = tmp_path / "a.so"
    line.submit(invented(library, 0, keep_library=True))
    ((_, outcome),) = line.finished()
    assert outcome.error == "timeout: build took more than 20 s"
    assert (outcome.build_s, outcome.measure_s) == (20.0, 0.0)
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.integers(0, 4), max_size=20), st.booleans(), st.integers(0, 2**32 - 1), st.booleans())
def test_whatever_the_order_of_events_every_candidate_comes_out_once(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], overlap: bool, seed: int, twins: bool
) -> None:
    rng = np.random.default_rng(seed)
    pool: Any = SyntheticPool(lambda _: "crash" if rng.random() < 0.3 else 1e-6, overlap)
    pool.code = (lambda _: str(rng.integers(3))) if twins else None
    line: CandidatePipeline[int] = CandidatePipeline(pool)
    folder = tmp_path_factory.mktemp("line")
    submitted, finished = 0, []
    for size in batches:
        for _ in range(size):
            library = folder / f"{submitted}.so"
            line.submit(invented(library, submitted, family="w"))
            submitted += 1
        finished += [candidate.token for candidate, _ in line.finished()]
        assert line.num_in_flight == submitted - len(finished) or twins
    while line.num_in_flight:
        finished += [candidate.token for candidate, _ in line.finished()]
    assert sorted(finished) == list(range(submitted))
    assert list(line.finished()) == []
    assert list(folder.iterdir()) == []


def group_of(folder: Path, *rounds: list[Outcome]) -> list[tuple[Candidate[int], list[Outcome]]]:
    """A compiled candidate for each list of rounds so far."""
    libraries = [folder / f"{i}.so" for i in range(len(rounds))]
    for library in libraries:
        library.touch()
    candidates = [invented(path, i) for i, path in enumerate(libraries)]
    return list(zip(candidates, rounds, strict=True))


class Timer(SyntheticPool):
    """Times 1 µs, 2 µs and so on, one more each time; negative where the answer is an error."""

    def __init__(self, *errors: int) -> None:
        super().__init__()
        self.errors = errors

    def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Future[Answer]:
        self.timed.append(request.library.stem)
        if len(self.timed) in self.errors:
            return answered(failed("crash: the worker ended"))
        return answered(timed(1e-6 * len(self.timed)))


GOOD, BAD = Outcome(5e-6, 1e-8, None), Outcome(None, None, "compile error")


def test_the_median_of_several_rounds_counts(tmp_path: Path) -> None:
    rounds = {"0": iter([1e-6, 2e-6]), "1": iter([5e-6, 5e-6])}

    class Noisy(SyntheticPool):
        def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Future[Answer]:
            return answered(timed(next(rounds[request.library.stem]), 1e-8))

    group = group_of(tmp_path, [Outcome(9e-6, 1e-8, None)], [GOOD])
    noisy, steady = (outcome for _, outcome in time_in_rounds(group, Noisy(), 3))
    assert noisy.seconds == 2e-6
    assert (noisy.spread_s or 0.0) > 1e-6
    assert (steady.seconds, steady.spread_s) == (5e-6, 1e-8)


def test_what_failed_is_not_timed_again_and_a_round_that_fails_is_left_out(tmp_path: Path) -> None:
    pool = Timer(1, 2)
    group = group_of(tmp_path, [GOOD], [BAD], [GOOD, BAD])
    assert [o for _, o in time_in_rounds(group, pool, 3)] == [GOOD, BAD, BAD]
    assert pool.timed == ["0", "0"]


def test_candidates_are_timed_in_as_many_rounds_as_they_lack(tmp_path: Path) -> None:
    """All of them once, then all again."""
    pool, kept = Timer(3), []
    group = group_of(tmp_path, [GOOD], [GOOD, GOOD], [GOOD] * 3)
    medians = time_in_rounds(group, pool, 4, keep=lambda token, outcome: kept.append((token, outcome.seconds)))
    assert pool.timed == ["0", "0", "1", "0", "1", "2"]
    assert sorted(kept) == [(token, pytest.approx(1e-6 * i)) for token, i in ((0, 1), (0, 2), (0, 4), (1, 5), (2, 6))]
    assert [o.seconds for _, o in medians] == [pytest.approx(s) for s in (3e-6, 5e-6, 5e-6)]
    assert all(candidate.library.exists() for candidate, _ in group)


# ---- several devices ------------------------------------------------------------------------------------------------
class Farm(SyntheticPool):
    """Devices that answer when `work` lets them, each in order; `gone` are those that others stand in for."""

    num_devices = 3

    def __init__(self) -> None:
        super().__init__(lambda _: 1e-6)
        self.gone: set[int] = set()
        self.who: dict[str, list[int]] = {}
        """Devices that timed a library, in order."""

    def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Future[Answer]:
        assert device is not None
        by = device if device not in self.gone else next(d for d in range(self.num_devices) if d not in self.gone)
        self.who.setdefault(request.library.stem, []).append(by)
        return answered(timed(1e-6, device=by))


def through(line: CandidatePipeline[str], folder: Path, *names: str) -> None:
    """Candidates called after their family and a number, all in the line at the same time."""
    for name in names:
        library = folder / f"{name}.so"
        line.submit(invented(library, name, family=name[0]))
    while line.num_in_flight:
        list(line.finished())


def test_a_family_is_timed_by_one_device_and_families_by_several(tmp_path: Path) -> None:
    farm: Any = Farm()
    line: CandidatePipeline[str] = CandidatePipeline(farm)
    through(line, tmp_path, "a1", "b1", "c1", "a2")
    through(line, tmp_path, "c2", "b2", "a3", "d1")
    homes = {family: {d for name, by in farm.who.items() if name[0] == family for d in by} for family in "abc"}
    assert sorted(homes.values(), key=min) == [{0}, {1}, {2}]


def test_a_family_moves_with_the_device_that_stands_in(tmp_path: Path) -> None:
    farm: Any = Farm()
    line: CandidatePipeline[str] = CandidatePipeline(farm)
    through(line, tmp_path, "a1")
    farm.gone = {0}
    through(line, tmp_path, "a2")
    farm.gone = set()
    through(line, tmp_path, "a3")
    assert [farm.who[name] for name in ("a1", "a2", "a3")] == [[0], [1], [1]]


def test_all_rounds_of_a_candidate_are_one_devices(tmp_path: Path) -> None:
    farm: Any = Farm()
    group = group_of(tmp_path, *([Outcome(5e-6, 1e-8, None, device=d)] for d in (2, 0, 2)), [GOOD])
    time_in_rounds(group, farm, 4)
    assert [farm.who[str(i)] for i in range(3)] == [3 * [2], 3 * [0], 3 * [2]]
    (own,) = {tuple(set(by)) for name, by in farm.who.items() if name == "3"}
    assert len(own) == 1
