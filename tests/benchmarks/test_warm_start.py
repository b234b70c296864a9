"""The warm-start benchmark: searches played again on invented measurements, and what is made of them."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.core.processor import host_processor
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.files.run import RunDirectory
from chanas.operators.workload import Workload
from chanas.prescheduler.records.store import RecordStore, TuningRecord

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SMALL = Workload("pointwise", 7, 16, 64)
CPU = load_target("cpu")


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("warm_start")
    for name in ("common", "tuning", "tuning_efficiency", "warm_start"):
        sys.modules.pop(name, None)


def invented(target: HardwareTarget) -> dict[tuple[int, ...], TuningRecord]:
    """The n-th point takes n seconds."""
    return {p: TuningRecord(p, float(i + 1)) for i, p in enumerate(schedule_space(SMALL, target).points)}


def test_what_a_device_says_of_itself_is_followed_and_upside_down_it_is_dropped(warm: ModuleType) -> None:
    tables = {"cpu": {SMALL: invented(CPU)}}
    found = warm.play_pair(CPU, CPU, tables, {"pointwise": [SMALL]}, 12, 16, 2)
    assert set(found) == set(warm.STRATEGIES)
    assert warm.mean_trials(found[warm.WARM], 12) <= warm.mean_trials(found[warm.COLD], 12)
    assert warm.dropped_share(found[warm.WARM]) == 0.0
    assert warm.dropped_share(found[warm.PLANTED]) == 1.0
    assert warm.dropped_share(found[warm.PLANTED_UNGUARDED]) == 0.0


def test_an_operator_alone_is_played_by_the_command_with_the_other_device_and_without(
    warm: ModuleType, tmp_path: Path
) -> None:
    table = {
        point: TuningRecord(point, 1e-6 * (record.seconds or 0.0), 1e-9) for point, record in invented(CPU).items()
    }
    runs = [RunDirectory(tmp_path / name) for name in ("here", "there")]
    for run, fingerprint in zip(runs, (CPU.fingerprint, "0123456789ab"), strict=True):
        target = dataclasses.replace(CPU, fingerprint=fingerprint)
        with contextlib.closing(RecordStore(run.records, target)) as store:
            store.add(SMALL.key, list(table.values()))
    (row,) = warm.alone(runs[0], str(runs[1].root), CPU, {SMALL: table}, 16, 2)
    assert (row["operator"], row["points"]) == (SMALL.key, len(table))
    assert row["correlation"] == pytest.approx(1.0)
    assert row["warm_1"] == row["warm_5"] == 1.0 < row["cold_5"] <= row["cold_1"]
    figures = warm.alone_figures({"there to here": [row]})
    assert figures["alone_share_alike_5"].value == pytest.approx(1.0 / row["cold_5"])
    assert figures["alone_share_unlike_1"].value is None
    assert figures["there_to_here_alone_warm_1"].value == 1.0


def test_shares_are_means_over_operators_that_are_alike_and_over_others(warm: ModuleType) -> None:
    rows = [{"correlation": c, "cold_5": 10.0, "warm_5": w} for c, w in ((0.9, 2.0), (0.8, 4.0), (0.5, 12.0))]
    assert warm.shares_of(rows, 5) == {"alike": pytest.approx(0.3), "unlike": pytest.approx(1.2)}
    assert warm.shares_of(rows[:2], 5)["unlike"] is None


def test_upside_down_the_fastest_is_the_slowest(warm: ModuleType) -> None:
    space = schedule_space(SMALL, CPU)
    prior = warm.prior_from(list(invented(CPU).values()), space, space, (CPU, CPU))
    turned = warm.upside_down(prior)
    assert turned.points == prior.points[::-1]
    assert list(turned.seconds) == sorted(turned.seconds)
    np.testing.assert_allclose([turned.seconds.min(), turned.seconds.max()], [1.0, prior.seconds.max()])


@pytest.mark.parametrize(("curve", "trials"), [([1.2, 1.04, 1.0], 2), ([1.05], 1), ([1.2, 1.1], 9), ([], 9)])
def test_trials_are_counted_until_it_is_close_enough(warm: ModuleType, curve: list[float], trials: int) -> None:
    assert warm.trials_until(curve, num_trials=8) == trials


@pytest.mark.skipif("avx512_bf16" not in host_processor().used_flags, reason="the processor has no AVX512_BF16")
def test_operators_of_another_dtype_are_those_with_the_same_space(warm: ModuleType) -> None:
    target = load_target("cpu", 1, "bf16")
    found = warm.operators(target, CPU)
    assert "depthwise" in found
    assert all(w.dtype == target.dtype for workloads in found.values() for w in workloads)
