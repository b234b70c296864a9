"""chanas/measuring/canary.py: what drifts is corrected or timed again, and a canary that fails stops
nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.measuring import canary as module
from chanas.measuring.canary import EVERY_S, LIMIT, NOISE, Canary
from chanas.measuring.candidates import CandidatePipeline
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import Answer, Outcome, Reading

from ..compiler.workbench import HOST, SyntheticPool, answered, failed, invented, timed


@pytest.fixture(autouse=True)
def never_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """These candidates take no time: without this one reading would speak for all of them."""
    monkeypatch.setattr(module, "FRESH_S", 0.0)


def canary_of(folder: Path, *seconds: float) -> Canary:
    canary = Canary(HOST, folder)
    for s in seconds:
        canary.observe(timed(s))
    return canary


class DriftingPool(SyntheticPool):
    """A machine on which the n-th candidate, and the canary after it, take `drift(n)` times as long as 1 and 5 µs."""

    def __init__(self, drift: Any, overlap: bool = True) -> None:
        super().__init__(lambda _: 1e-6, overlap)
        self.drift, self.num_readings = drift, 0

    def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Future[Answer]:
        if request.library.name == "canary.so":
            self.num_readings += 1
            return answered(timed(5e-6 * self.drift(len(self.timed))))
        super().measure(request, timeout_s, device)
        return answered(timed(1e-6 * self.drift(len(self.timed)), 1e-8))


def test_a_fresh_reading_speaks_for_what_was_timed_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRESH_S", 60.0)
    outcomes, canary = run(DriftingPool(lambda _: 1.0), tmp_path, 6)
    assert len(outcomes) == 6
    assert len(canary.readings) == 3  # those before anything else


def test_a_disturbance_that_is_over_corrects_nothing_that_is_timed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH_S", 60.0)
    disturbed = canary_of(tmp_path, 5e-6, 5e-6, 5e-6, 10e-6)
    (outcome,), canary = run(DriftingPool(lambda _: 1.0), tmp_path, 1, disturbed)
    assert (outcome.seconds, outcome.drift) == (1e-6, 1.0)
    assert canary.num_again == 0


def run(pool: Any, folder: Path, num: int, canary: Canary | None = None) -> tuple[list[Outcome], Canary]:
    """Candidates one after the other, each through before the next one starts."""
    canary = canary or Canary(HOST, folder)
    line: CandidatePipeline[int] = CandidatePipeline(pool, canary)
    outcomes = []
    for i in range(num):
        library = folder / f"{i}.so"
        line.submit(invented(library, i))
        outcomes += [outcome for _, outcome in line.finished()]
    assert line.num_in_flight == 0
    assert {p.name for p in folder.iterdir()} <= {"canary.so", "canary.npz"}
    return outcomes, canary


# ---- drift ----------------------------------------------------------------------------------------------------------
def test_drift_is_relative_to_the_median_so_far(tmp_path: Path) -> None:
    drifts = [r.drift for r in canary_of(tmp_path, 2.0, 2.0, 2.0, 3.0, 1.0).readings]
    assert drifts == [1.0, 1.0, 1.0, 1.5, 0.5]


@given(st.floats(0.5, 2.0))
def test_a_correction_gives_the_seconds_of_an_undisturbed_machine(
    tmp_path_factory: pytest.TempPathFactory, drift: float
) -> None:
    canary = canary_of(tmp_path_factory.getbasetemp(), 1.0, 1.0, 1.0, drift)
    within_noise = abs(drift - 1.0) <= NOISE
    assert canary.correction == (1.0 if within_noise else pytest.approx(drift))
    assert canary.is_disturbed == (abs(drift - 1.0) > LIMIT)


def test_a_drift_within_the_spread_of_the_reading_is_noise(tmp_path: Path) -> None:
    canary = canary_of(tmp_path, 1.0, 1.0, 1.0)
    canary.observe(timed(1.1, spread_s=0.2))
    assert canary.correction == 1.0
    canary.observe(timed(1.1, spread_s=0.01))
    assert canary.correction == pytest.approx(1.1)


def test_a_reading_is_due_at_the_start_and_after_enough_measuring(tmp_path: Path) -> None:
    assert Canary(HOST, tmp_path).is_due()
    canary = canary_of(tmp_path, 1.0)
    assert not canary.is_due(0.6 * EVERY_S)
    assert canary.is_due(0.6 * EVERY_S)


@pytest.mark.parametrize("answer", [failed("crash"), failed("wrong result: relative error 1 against PyTorch")])
def test_a_reading_that_failed_is_left_out(tmp_path: Path, answer: Answer) -> None:
    canary = canary_of(tmp_path, 1.0, 1.0)
    canary.observe(answer)
    assert len(canary.readings) == 2
    assert canary.correction == 1.0


def test_a_disturbance_that_lasts_is_not_waited_for_until_it_is_over(tmp_path: Path) -> None:
    canary = canary_of(tmp_path, 1.0, 1.0, 1.0, 1.5)
    assert [canary.wants_again(tries) for tries in (1, 2, 3, 1)] == [True, True, False, False]
    canary.observe(timed(1.5))
    assert not canary.wants_again(1)
    canary.observe(timed(1.0))
    assert not canary.wants_again(1)
    canary.observe(timed(1.5))
    assert canary.wants_again(1)


def test_every_reading_is_kept(tmp_path: Path) -> None:
    kept: list[Reading] = []
    canary = Canary(HOST, tmp_path, kept.append)
    canary.observe(timed(1.0))
    canary.observe(timed(1.0))
    assert kept == canary.readings
    assert len(kept) == 2


def test_the_description_says_how_large_it_was(tmp_path: Path) -> None:
    assert canary_of(tmp_path).describe() == "no canary was read"
    canary = canary_of(tmp_path, 1.0, 1.0, 1.0, 1.5, 0.9)
    assert canary.describe() == "-10.0% to +50.0% over 5 readings; 0 timings corrected, 0 repeated"


# ---- in the line ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    ("drift", "drifts", "num_again"),
    [
        (lambda _: 1.0, [1.0] * 6, 0),
        (lambda n: 1.1 if n >= 4 else 1.0, [1.0, 1.0, 1.0, 1.1, 1.1, 1.1], 0),
        (lambda n: 2.0 if n in (4, 5) else 1.0, [1.0] * 6, 2),
    ],
    ids=["steady", "small", "large"],
)
def test_a_drift_is_divided_out_and_what_a_large_one_hit_is_timed_again(
    tmp_path: Path, overlap: bool, drift: Callable[[int], float], drifts: list[float], num_again: int
) -> None:
    pool = DriftingPool(drift, overlap)
    outcomes, canary = run(pool, tmp_path, 6)
    assert [o.seconds for o in outcomes] == pytest.approx([1e-6] * 6)
    assert [o.drift for o in outcomes] == pytest.approx(drifts)
    assert [o.spread_s for o in outcomes] == pytest.approx([1e-8 / d for d in drifts])
    assert (canary.num_corrected, canary.num_again) == (sum(d != 1.0 for d in drifts), num_again)
    assert len(pool.timed) == 6 + num_again
    assert pool.num_readings == len(canary.readings) > 3


def test_a_large_disturbance_that_lasts_ends_all_the_same(tmp_path: Path) -> None:
    pool = DriftingPool(lambda n: 2.0 if n >= 4 else 1.0)
    outcomes, canary = run(pool, tmp_path, 8)
    assert len(outcomes) == 8
    assert canary.num_again == 2
    assert len(pool.timed) == 10


def test_failures_come_out_as_they_are_whatever_the_drift(tmp_path: Path) -> None:
    class Crashing(DriftingPool):
        def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Future[Answer]:
            answer = super().measure(request, timeout_s, device)
            return answer if request.library.name == "canary.so" else answered(failed("crash: signal 11"))

    outcomes, canary = run(Crashing(lambda n: 2.0 if n >= 4 else 1.0), tmp_path, 6)
    assert {(o.seconds, o.error) for o in outcomes} == {(None, "crash: signal 11")}
    assert canary.num_again == 0


@pytest.mark.parametrize("call", ["build", "measure"])
def test_a_canary_that_does_not_work_stops_nothing(tmp_path: Path, call: str) -> None:
    class Broken(DriftingPool):
        def build(self, request: Any, timeout_s: float) -> Future[Answer]:
            answer = super().build(request, timeout_s)
            broken = call == "build" and request.path.name == "canary.so"
            return answered(failed("TargetError: no linker found")) if broken else answer

        def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Future[Answer]:
            answer = super().measure(request, timeout_s, device)
            return answered(failed("timeout")) if request.library.name == "canary.so" else answer

    outcomes, canary = run(Broken(lambda _: 1.0), tmp_path, 4)
    assert [o.seconds for o in outcomes] == [1e-6] * 4
    assert canary.describe() == "no canary was read"


class TwoDevices(DriftingPool):
    """The second one is half as fast, and slows down by half when it has timed two candidates."""

    num_devices = 2

    def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Future[Answer]:
        assert device is not None
        is_canary = request.library.name == "canary.so"
        self.timed += [] if is_canary else [str(device)]
        slow = 1.0 if device == 0 else 2.4 if self.timed.count("1") > 2 else 2.0
        return answered(timed(slow * (5e-6 if is_canary else 1e-6), device=device))


def test_every_device_drifts_by_itself(tmp_path: Path) -> None:
    canary, pool = Canary(HOST, tmp_path), TwoDevices(lambda _: 1.0)
    line: CandidatePipeline[int] = CandidatePipeline(pool, canary)
    outcomes = []
    for i in range(5):
        for family in ("a", "b"):
            library = tmp_path / f"{family}{i}.so"
            line.submit(invented(library, i, family=family))
        while line.num_in_flight:
            outcomes += [outcome for _, outcome in line.finished()]
    drifts = {device: [o.drift for o in outcomes if o.device == device] for device in (0, 1)}
    assert drifts == {0: [1.0] * 5, 1: pytest.approx([1.0, 1.0, 1.2, 1.2, 1.2])}
    assert {round((o.seconds or 0.0) * 1e6, 6) for o in outcomes} == {1.0, 2.0}
    assert {round(r.seconds * 1e6) for r in canary.on(0).readings} == {5}
    assert canary.describe().endswith("3 timings corrected, 0 repeated; 2 devices, 100.0% apart")


class LosesOne(TwoDevices):
    """The first device is lost over its second candidate, which the other one times when it is let to."""

    def measure(self, request: Any, timeout_s: float, device: int | None = None) -> Future[Answer]:
        if request.library.name != "late.so":
            return super().measure(request, timeout_s, device)
        answer: Future[Answer] = Future()
        threading.Timer(0.1, answer.set_result, [super().measure(request, timeout_s, 1).result()]).start()
        return answer


@pytest.mark.timeout(30)
def test_what_waits_for_a_reading_comes_out_when_its_device_has_lost_the_rest(tmp_path: Path) -> None:
    canary, pool = Canary(HOST, tmp_path), LosesOne(lambda _: 1.0)
    line: CandidatePipeline[str] = CandidatePipeline(pool, canary)
    for future in canary.read(pool):
        canary.observe(future.result())
    for name in ("soon", "late"):
        library = tmp_path / f"{name}.so"
        line.submit(invented(library, name, family="a"))
    through = {}
    while line.num_in_flight:
        through.update({candidate.token: outcome.device for candidate, outcome in line.finished()})
    assert through == {"soon": 0, "late": 1}


def test_a_real_canary_sings(pool: WorkerPool, tmp_path: Path) -> None:
    canary = Canary(HOST, tmp_path)
    for future in canary.read(pool):
        canary.observe(future.result())
    assert len(canary.readings) == 3
    assert all(r.seconds > 0.0 and r.created > 0.0 for r in canary.readings)
