"""chanas/workflows/stages/table_report.py: what is said of a table is what its rows say."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from tables import CLASSES, random_table

from chanas.core.arch import SearchSpace
from chanas.core.genome import sample
from chanas.core.latency import Calibration, LatencyLUT, LUTRow
from chanas.devices.target_files import arch_target
from chanas.errors import LUTError
from chanas.workflows.stages.table_report import (
    Comparison,
    compare,
    describe_calibration,
    header_differences,
    numbers_of_classes,
    sampled_latencies,
    summarise,
)

CALIBRATION = Calibration(1e-5, 1.25, 1e-6, 8, 0.012, 0.034, 0.98, 0.1)


@pytest.fixture
def table(tiny_space: SearchSpace) -> LatencyLUT:
    return random_table(tiny_space)


@pytest.fixture
def half(tiny_space: SearchSpace) -> LatencyLUT:
    """The first two of the four sub-spaces: the smaller resolution."""
    return random_table(tiny_space, sub_spaces=tiny_space.sub_spaces[:2])


def scaled(lut: LatencyLUT, factor: float, **header: str) -> LatencyLUT:
    rows = {key: dataclasses.replace(row, median_s=factor * row.median_s) for key, row in lut.rows.items()}
    return LatencyLUT(dataclasses.replace(lut.header, **header), rows, lut.calibration)


# ---- one table ------------------------------------------------------------------------------------------------------
def test_a_whole_table_covers_everything(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    summary = summarise(table, tiny_space, CLASSES)
    num_blocks = len(tiny_space.all_blocks(CLASSES))
    assert (summary.num_rows, summary.num_blocks, summary.num_measured) == (num_blocks,) * 3
    assert summary.rows_by_kind == {"stem": 4, "mbconv": num_blocks - 4 - 4 - 2, "head": 4, "classifier": 2}
    assert [s.key for s in summary.sub_spaces] == [s.key for s in tiny_space.sub_spaces]
    assert all(s.num_measured == s.num_blocks == 20 for s in summary.sub_spaces)


def test_latencies_are_those_of_the_same_architectures_by_the_table(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    table.calibration = CALIBRATION
    first = summarise(table, tiny_space, CLASSES, num_samples=50, seed=3).sub_spaces[0]
    drawn = sample(tiny_space, 50, np.random.default_rng(3), tiny_space.sub_spaces[0])
    seconds = table.latency_s(tiny_space, CLASSES, drawn)
    assert (first.min_s, first.median_s, first.max_s) == (seconds.min(), np.median(seconds), seconds.max())


def test_a_sub_space_with_a_hole_has_no_latencies(tiny_space: SearchSpace, half: LatencyLUT) -> None:
    del half.rows[tiny_space.all_blocks(CLASSES, tiny_space.sub_spaces[1:2])[0].key]
    assert half.covered(tiny_space, CLASSES) == tiny_space.sub_spaces[:1]
    whole, holed, other, _ = summarise(half, tiny_space, CLASSES).sub_spaces
    assert None not in (whole.min_s, whole.median_s, whole.max_s)
    assert (holed.num_blocks, holed.num_measured, holed.median_s) == (20, 19, None)
    assert other.num_measured < 20
    assert other.median_s is None


def test_an_architecture_with_a_missing_block_takes_nan_seconds(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    """A kernel of one stage's first block is missing: architectures without it have their seconds."""
    sub_space = tiny_space.sub_spaces[0]
    whole = sampled_latencies(table, tiny_space, CLASSES, [sub_space], 200, seed=0)
    del table.rows[tiny_space.block(sub_space, 0, 0, 3, 2).key]
    seconds = sampled_latencies(table, tiny_space, CLASSES, [sub_space], 200, seed=0)
    missing = np.isnan(seconds)
    assert 0.1 < missing.mean() < 0.4
    np.testing.assert_array_equal(seconds[~missing], whole[~missing])


def test_without_the_space_the_rest_is_said(table: LatencyLUT) -> None:
    summary = summarise(table, None, CLASSES)
    assert (summary.num_blocks, summary.sub_spaces) == (None, ())
    assert summary.num_rows == len(table.rows)
    assert "covered    unknown: the search space is not at hand; name it with --space" in list(summary.lines())


def test_another_space_is_refused(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    with pytest.raises(LUTError, match="expected a LUT of space"):
        summarise(table, dataclasses.replace(tiny_space, head_width=64), CLASSES)


def test_the_slowest_blocks_come_first(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    slowest = summarise(table, tiny_space, CLASSES).slowest
    times = sorted((row.median_s for row in table.rows.values()), reverse=True)
    assert [seconds for _, seconds in slowest] == times[:10]
    assert all(table.rows[key].median_s == seconds for key, seconds in slowest)


def test_an_empty_table_is_summed_up_too(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    summary = summarise(LatencyLUT(table.header), tiny_space, CLASSES)
    assert (summary.num_rows, summary.num_measured, summary.median_spread) == (0, 0, None)
    assert "rows       0" in list(summary.lines())
    json.dumps(summary.to_json(), allow_nan=False)


def test_predicted_rows_are_counted_with_what_they_may_be_off(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    assert summarise(table, tiny_space, CLASSES).num_predicted == 0
    for error, key in zip((0.02, 0.04, 0.5), list(table.rows)[:3], strict=True):
        table.rows[key] = dataclasses.replace(table.rows[key], predicted_error=error, spread_s=0.0)
    source = {"target": "cpu", "device": "Some CPU", "fingerprint": "f", "num_rows": 7}
    table.header = dataclasses.replace(table.header, adapted_from=(source,))
    summary = summarise(table, tiny_space, CLASSES)
    assert (summary.num_predicted, summary.predicted_error) == (3, pytest.approx(0.04))
    (line,) = [line for line in summary.lines() if line.startswith("predicted")]
    assert "Some CPU" in line
    assert f"3 of {len(table.rows)} rows" in line
    assert line.endswith("`chanas lut fill` measures them")


def test_rows_of_some_sub_spaces_are_measured_without_the_others(tiny_space: SearchSpace, half: LatencyLUT) -> None:
    key = next(iter(half.rows))
    half.rows[key] = dataclasses.replace(half.rows[key], predicted_error=0.1, spread_s=0.0)
    (line,) = [line for line in summarise(half, tiny_space, CLASSES).lines() if line.startswith("predicted")]
    names = " ".join(f"--sub-space {sub_space.key}" for sub_space in half.covered(tiny_space, CLASSES))
    assert line.endswith(f"`chanas lut fill {names}` measures them")


def test_a_summary_as_text_and_as_json(tiny_space: SearchSpace, half: LatencyLUT) -> None:
    half.calibration = CALIBRATION
    summary = summarise(half, tiny_space, CLASSES)
    text = "\n".join(summary.lines())
    for part in (
        half.header.target.fingerprint,
        f"tiny ({tiny_space.digest}), {CLASSES} classes",
        "2 of 4 sub-spaces",
        CALIBRATION.describe(),
        "rows 2026-01-02T03:04:05+00:00 to",
        "of 500 random architectures, calibrated",
    ):
        assert part in text
    data = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert data["calibration"]["mape"] == 0.012
    assert data["num_rows"] == len(half.rows)
    assert data["slowest"][0]["block"] == summary.slowest[0][0]


def test_the_numbers_of_classes_are_those_of_the_classifiers(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    assert numbers_of_classes(table) == (CLASSES,)
    table.rows |= random_table(tiny_space, num_classes=100).rows
    assert numbers_of_classes(table) == (CLASSES, 100)
    assert numbers_of_classes(LatencyLUT(table.header)) == ()


def test_a_table_without_calibration_says_how_to_get_one() -> None:
    assert "run" not in describe_calibration(CALIBRATION)
    assert "`chanas lut calibrate`" in describe_calibration(None)


# ---- two tables -----------------------------------------------------------------------------------------------------
def test_a_table_beside_itself_differs_in_nothing(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    same = compare(table, table, tiny_space, CLASSES)
    assert (same.differences, same.num_rescheduled, same.only_a, same.only_b) == ({}, 0, 0, 0)
    assert same.num_shared == len(table.rows)
    assert same.blocks.geometric_mean == pytest.approx(1.0)
    assert set(same.blocks.quantiles.values()) == {1.0}
    assert same.blocks.kendall_tau == pytest.approx(1.0)
    assert same.architectures is not None
    assert (same.architectures.num, same.architectures.kendall_tau) == (1000, pytest.approx(1.0))
    assert same.gained == same.lost == ()


def test_a_table_of_half_the_seconds(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    faster = scaled(table, 0.5, compiler="0.99")
    half = compare(table, faster, tiny_space, CLASSES)
    assert half.differences == {"compiler": (table.header.compiler, "0.99")}
    assert half.blocks.geometric_mean == pytest.approx(0.5)
    assert half.architectures is not None
    assert half.architectures.geometric_mean == pytest.approx(0.5)
    assert len(half.gained) == 10
    assert half.lost == ()
    assert compare(faster, table, tiny_space, CLASSES).blocks.geometric_mean == pytest.approx(2.0)


def test_the_blocks_that_changed_most_come_first(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    other = scaled(table, 1.0)
    first, second, third = list(table.rows)[:3]
    for key, factor in ((first, 3.0), (second, 0.25), (third, 0.5)):
        row = table.rows[key]
        other.rows[key] = LUTRow(factor * row.median_s, 1e-7, 4, (("w", (1,)),))
    changed = compare(table, other, tiny_space, CLASSES)
    assert [(c.block, c.ratio) for c in changed.gained] == [(second, 0.25), (third, 0.5)]
    assert [(c.block, pytest.approx(c.ratio)) for c in changed.lost] == [(first, 3.0)]
    assert changed.num_rescheduled == 3
    assert changed.gained[0].rescheduled


def test_opposite_orders_have_a_tau_of_minus_one(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    rows = {key: dataclasses.replace(row, median_s=1e-9 / row.median_s) for key, row in table.rows.items()}
    assert compare(table, LatencyLUT(table.header, rows), tiny_space, CLASSES).blocks.kendall_tau == pytest.approx(-1)


def test_networks_are_compared_in_sub_spaces_that_both_cover(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    half = random_table(tiny_space, seed=1, sub_spaces=tiny_space.sub_spaces[:2])
    found = compare(table, half, tiny_space, CLASSES)
    assert (found.num_shared, found.only_a, found.only_b) == (len(half.rows), len(table.rows) - len(half.rows), 0)
    assert found.architectures is not None
    assert found.architectures.num == 1000
    rest = random_table(tiny_space, seed=1, sub_spaces=tiny_space.sub_spaces[2:])
    apart = compare(half, rest, tiny_space, CLASSES)
    assert 0 < apart.num_shared < len(rest.rows)
    assert apart.architectures is None


def test_rows_that_are_all_alike_have_no_ranking(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    rows = {key: dataclasses.replace(row, median_s=1e-6) for key, row in table.rows.items()}
    flat = compare(LatencyLUT(table.header, rows), table, None, CLASSES)
    assert flat.blocks.kendall_tau is None
    assert flat.architectures is None
    assert "Kendall tau -" in "\n".join(flat.lines())


def test_tables_without_a_common_block_are_refused(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    with pytest.raises(LUTError, match="share none; fill both with `chanas lut fill`"):
        compare(table, LatencyLUT(table.header), tiny_space, CLASSES)


def test_a_comparison_as_text_and_as_json(tiny_space: SearchSpace, table: LatencyLUT) -> None:
    slower = scaled(table, 1.5, compiler="0.99", created="now")
    found: Comparison = compare(table, slower, tiny_space, CLASSES)
    text = list(found.lines())
    assert f"differs        compiler  {table.header.compiler} | 0.99" in text
    assert "slower in B         A         B" in text
    assert "faster in B" not in "\n".join(text)
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["blocks"]["geometric_mean"] == pytest.approx(1.5)
    assert math.isclose(data["lost"][0]["ratio"], 1.5)


def test_differences_of_targets_are_named(table: LatencyLUT) -> None:
    target = dataclasses.replace(table.header.target, num_threads=2, name="cpu-2t")
    differing = header_differences(table.header, dataclasses.replace(table.header, target=target, seed=7))
    assert differing == {"target.name": ("cpu", "cpu-2t"), "target.num_threads": (1, 2), "seed": (0, 7)}


def test_what_only_one_of_the_headers_has_is_a_difference(table: LatencyLUT) -> None:
    """A processor's names no GPU and no timing."""
    gpu = arch_target("sm_90")
    on_gpu = dataclasses.replace(table.header, target=gpu, timing="device events")
    found = header_differences(table.header, on_gpu)
    assert (found["target.gpu"], found["timing"]) == (
        (None, dataclasses.asdict(gpu.required_gpu)),
        (None, "device events"),
    )
    assert header_differences(on_gpu, table.header) == {field: (b, a) for field, (a, b) in found.items()}


def test_reports_need_neither_torch_nor_tvm() -> None:
    code = (
        "import sys, chanas.workflows.stages.table_report, chanas.workflows.stages.tables; "
        "print({'torch', 'tvm', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
