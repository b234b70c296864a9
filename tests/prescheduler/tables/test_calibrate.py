"""chanas/prescheduler/tables/calibrate.py: the correction that a table gets from whole networks."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chanas.core import genome
from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import encode
from chanas.core.latency import CacheMisses, Calibration, LatencyLUT, missed_bytes
from chanas.core.statistics import relative_fit
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.errors import MeasureError
from chanas.files.run import RunDirectory
from chanas.measuring.messages import NetworkAt, Outcome
from chanas.prescheduler.tables import calibrate as module
from chanas.prescheduler.tables.calibrate import (
    best_fit,
    calibrate,
    draw_architectures,
    left_out_predictions,
    terms,
    weight_bytes,
)
from chanas.prescheduler.tables.networks import NetworkJob

from ...compiler.workbench import HOST, NANO, NUM_CLASSES, SyntheticPool, fill_table, random_lut

SPACE = dataclasses.replace(NANO, kernel_sizes=(3, 5), expand_ratios=(2, 3), depths=(1, 2))


@pytest.fixture
def lut() -> LatencyLUT:
    """A table of random schedules and random times."""
    rng = np.random.default_rng(0)
    table = random_lut(SPACE, SPACE.all_blocks(NUM_CLASSES), HOST)
    table.rows = {k: dataclasses.replace(r, median_s=1e-5 * (1 + rng.random())) for k, r in table.rows.items()}
    return table


def compiler(lut: LatencyLUT, fails: Sequence[int] = (), noise: float = 0.0) -> Any:
    """Stands where `compile_networks` stands: 3 µs, 1.5 times the sum of the table, and 1 µs a block."""
    rng = np.random.default_rng(1)

    def compile_networks(
        table: LatencyLUT, target: HardwareTarget, jobs: Sequence[NetworkJob], progress: bool, _open_pool: object
    ) -> list[Outcome]:
        def outcome(i: int, job: NetworkJob) -> Outcome:
            if i in fails:
                return Outcome(None, None, "timeout: build_network took more than 300 s")
            total = sum(lut.rows[b.key].median_s for b in job.blocks)
            seconds = (3e-6 + 1.5 * total + 1e-6 * len(job.blocks)) * np.exp(noise * rng.normal())
            return Outcome(float(seconds), 0.0, None)

        return [outcome(i, job) for i, job in enumerate(jobs)]

    return compile_networks


# ---- the networks ---------------------------------------------------------------------------------------------------
def test_networks_are_spread_over_the_sub_spaces_and_differ(tiny_space: SearchSpace) -> None:
    drawn = draw_architectures(tiny_space, 12, seed=0)
    assert Counter(a.sub_space for a in drawn) == dict.fromkeys(tiny_space.sub_spaces, 3)
    assert len({a.key for a in drawn}) == 12
    assert all(tiny_space.contains(a) for a in drawn)
    assert draw_architectures(tiny_space, 12, seed=0) == drawn != draw_architectures(tiny_space, 12, seed=1)


def test_networks_of_some_sub_spaces_only(tiny_space: SearchSpace) -> None:
    wanted = tiny_space.sub_spaces[1:3]
    assert {a.sub_space for a in draw_architectures(tiny_space, 8, 0, wanted)} == set(wanted)


def test_a_space_of_two_networks_gives_two() -> None:
    assert len(draw_architectures(NANO, 10, seed=0)) == NANO.num_architectures == 2


# ---- the fit --------------------------------------------------------------------------------------------------------
@given(st.floats(0.0, 1e-3), st.floats(0.1, 3.0), st.floats(0.0, 1e-4))
def test_a_fit_finds_the_coefficients_behind_the_times(start_s: float, scale: float, boundary_s: float) -> None:
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(20), 1e-3 * (1 + rng.random(20)), rng.integers(5, 20, 20)])
    measured_s = design @ np.array([start_s, scale, boundary_s])
    np.testing.assert_allclose(design @ relative_fit(design, measured_s), measured_s, rtol=1e-6)
    found = left_out_predictions(design, np.zeros(20), measured_s, l2_bytes=0)
    np.testing.assert_allclose(found, measured_s, rtol=1e-5)


def test_coefficients_are_never_below_zero() -> None:
    design = np.column_stack([np.ones(8), np.arange(1.0, 9.0), np.full(8, 7.0)])
    assert np.all(relative_fit(design, np.arange(8.0, 0.0, -1.0)) >= 0.0)


def test_a_left_out_network_does_not_predict_itself() -> None:
    design = np.column_stack([np.ones(8), np.arange(1.0, 9.0), np.full(8, 7.0)])
    measured_s = np.arange(1.0, 9.0)
    measured_s[3] *= 10.0
    assert left_out_predictions(design, np.zeros(8), measured_s, l2_bytes=0)[3] < 0.5 * measured_s[3]


def test_terms_are_one_the_sum_and_the_number_of_blocks(lut: LatencyLUT) -> None:
    (one, total, num_blocks), _ = terms(lut, SPACE, NUM_CLASSES, [SPACE.smallest, SPACE.largest])
    assert (one, num_blocks) == (1.0, 6.0)
    assert total == pytest.approx(lut.latency_s(SPACE, NUM_CLASSES, encode(SPACE, [SPACE.smallest]))[0])


# ---- weights that no longer fit the cache -------------------------------------------------------------------------
L2_BYTES = 2 << 20


def networks_around_a_cache(knee_bytes: float, s_per_byte: float, noise: float = 0.0) -> tuple[FloatArray, ...]:
    """Terms, bytes of weights, and seconds of 16 networks of a quarter of a cache to thrice as much."""
    rng = np.random.default_rng(0)
    weights = np.linspace(0.25, 3.0, 16) * L2_BYTES
    blocks_s = weights * 8e-11 * (0.8 + 0.4 * rng.random(16))
    design = np.column_stack([np.ones(16), blocks_s, rng.integers(9, 18, 16)])
    misses = CacheMisses(s_per_byte, knee_bytes, float(weights.mean()))
    measured_s = design @ np.array([2e-6, 1.0, 0.0]) + misses.seconds(weights)
    return design, weights, measured_s * np.exp(noise * rng.normal(size=16))


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
def test_a_fit_finds_the_cache_that_large_networks_fall_out_of(share: float) -> None:
    design, weights, measured_s = networks_around_a_cache(share * L2_BYTES, 3e-11)
    found = best_fit(design, weights, measured_s, L2_BYTES)
    assert found.misses is not None
    assert found.misses.knee_bytes == share * L2_BYTES
    assert found.misses.s_per_byte == pytest.approx(3e-11, rel=1e-3)
    np.testing.assert_allclose(found.predict(design, weights), measured_s, rtol=1e-4)


def test_the_term_for_the_cache_lowers_the_error_of_networks_left_out() -> None:
    networks = networks_around_a_cache(0.5 * L2_BYTES, 4e-11, noise=0.01)
    errors = [np.abs(left_out_predictions(*networks, l2) / networks[2] - 1).mean() for l2 in (0, L2_BYTES)]
    assert errors[1] < 0.02
    assert errors[0] > 1.5 * errors[1]


def test_misses_that_are_nearly_all_of_the_rows_are_none_of_a_cache() -> None:
    design, weights, measured_s = networks_around_a_cache(0.25 * L2_BYTES, 3e-11)
    assert best_fit(design, weights, measured_s, L2_BYTES).misses is not None
    # the same networks, with rows of a tenth of their seconds: all else would be the cache
    of_less = design * [1.0, 0.1, 1.0]
    assert best_fit(of_less, weights, measured_s, L2_BYTES).misses is None


def test_networks_that_no_cache_tells_apart_get_no_term_for_it() -> None:
    design, weights, measured_s = networks_around_a_cache(L2_BYTES, 0.0, noise=0.03)
    assert best_fit(design, weights, measured_s, L2_BYTES).misses is None


def test_weights_are_missed_from_the_knee_on_and_all_of_them_from_twice_as_many() -> None:
    sizes = np.array([50.0, 100.0, 150.0, 200.0, 300.0])
    assert missed_bytes(sizes, knee_bytes=100.0, typical_bytes=80.0).tolist() == [0, 0, 75, 200, 300]
    # rows were timed among twice the knee: their seconds hold all misses, and small networks have fewer
    assert missed_bytes(sizes, knee_bytes=100.0, typical_bytes=200.0).tolist() == [-50, -100, -75, 0, 0]


def test_a_table_adds_what_its_networks_miss(lut: LatencyLUT, tmp_path: Path) -> None:
    genomes = encode(SPACE, [SPACE.smallest, SPACE.largest])
    small, large = weight_bytes(lut, SPACE, NUM_CLASSES, [SPACE.smallest, SPACE.largest])
    lut.calibration = Calibration(0.0, 1.0, 0.0, 12, 0.02, 0.05, 0.99, 0.1)
    without = lut.latency_s(SPACE, NUM_CLASSES, genomes)
    misses = CacheMisses(1e-9, (small + large) / 2, small)
    lut.calibration = dataclasses.replace(lut.calibration, misses=misses, disagreement=0.07)
    lut.save(tmp_path / "cpu.json")
    stored = LatencyLUT.load(tmp_path / "cpu.json")
    assert stored.calibration == lut.calibration
    added = stored.latency_s(SPACE, NUM_CLASSES, genomes) - without
    np.testing.assert_allclose(added, misses.seconds(np.array([small, large])), rtol=1e-9)
    value, smallest = stored.table(SPACE, NUM_CLASSES).smallest()
    everything = stored.latency_s(SPACE, NUM_CLASSES, genome.sample(SPACE, 500, np.random.default_rng(0)))
    assert value.min() <= everything.min() * (1 + 1e-12)
    assert stored.table(SPACE, NUM_CLASSES).of(smallest[0, :1])[0] == pytest.approx(value[0, 0])


# ---- the correction -------------------------------------------------------------------------------------------------
def test_a_calibrated_table_predicts_whole_networks(lut: LatencyLUT, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "compile_networks", compiler(lut))
    correction = calibrate(lut, Task(SPACE, NUM_CLASSES), HOST, num_networks=12, progress=False)
    assert correction.num_networks == 12
    assert correction.mape < 1e-6
    assert correction.kendall_tau == pytest.approx(1.0)
    assert correction.uncorrected_mape > 0.3
    plain = lut.latency_s(SPACE, NUM_CLASSES, encode(SPACE, [SPACE.largest]))[0]
    lut.calibration = correction
    num_blocks = len(SPACE.largest.blocks(SPACE, NUM_CLASSES))
    got = lut.latency_s(SPACE, NUM_CLASSES, encode(SPACE, [SPACE.largest]))[0]
    assert got == pytest.approx(3e-6 + 1.5 * plain + 1e-6 * num_blocks)


def test_the_error_is_that_of_networks_left_out(lut: LatencyLUT, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "compile_networks", compiler(lut, noise=0.05))
    correction = calibrate(lut, Task(SPACE, NUM_CLASSES), HOST, num_networks=16, progress=False)
    assert 0.01 < correction.mape < correction.worst < 0.3


def test_networks_that_fail_are_left_out_as_long_as_there_are_enough(
    lut: LatencyLUT, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "compile_networks", compiler(lut, fails=(0, 5)))
    correction = calibrate(lut, Task(SPACE, NUM_CLASSES), HOST, num_networks=8, progress=False)
    assert correction.num_networks == 6
    assert correction.mape < 1e-6
    monkeypatch.setattr(module, "compile_networks", compiler(lut, fails=(0, 5, 7)))
    with pytest.raises(MeasureError, match="calibration needs 6 measured networks, got 5 of 8"):
        calibrate(lut, Task(SPACE, NUM_CLASSES), HOST, num_networks=8, progress=False)


def test_a_table_is_calibrated_again_only_when_it_has_changed(synthetic_pool: SyntheticPool, tmp_path: Any) -> None:
    run = RunDirectory(tmp_path)

    def fill(trials: int = 1, calibrate: int = 6) -> tuple[LatencyLUT, int]:
        before = sum(isinstance(asked.what, NetworkAt) for asked in synthetic_pool.built)
        options: dict[str, Any] = {"sub_spaces": SPACE.sub_spaces[:1], "tuner": "random"}
        lut = fill_table(run, SPACE, HOST, NUM_CLASSES, trials=trials, calibrate=calibrate, **options).lut
        return lut, sum(isinstance(asked.what, NetworkAt) for asked in synthetic_pool.built) - before

    first, num_networks = fill()
    assert first.calibration is not None
    assert num_networks == 6
    assert LatencyLUT.load(run.lut(HOST.name)) == first
    again, num_networks = fill()
    assert num_networks == 0
    assert again.calibration == first.calibration
    changed, num_networks = fill(trials=4)
    assert num_networks == 6
    assert changed.rows != first.rows
    changed, num_networks = fill(trials=9, calibrate=0)
    assert (num_networks, changed.calibration) == (0, None)
    assert changed.rows.keys() == first.rows.keys()
