"""chanas/prescheduler/tables/networks.py: a network compiled from its blocks' schedules is its PyTorch network."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.compiler.backends import BACKENDS, schedule_space
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.latency import LatencyLUT, LUTRow
from chanas.core.target import in_batches
from chanas.core.task import Task
from chanas.errors import CheckpointError, LUTError, MeasureError
from chanas.measuring.fleet import WorkerPool
from chanas.operators.steps import device_workloads
from chanas.prescheduler.tables import networks
from chanas.prescheduler.tables.calibrate import calibrate
from chanas.prescheduler.tables.networks import NetworkJob, block_points, compile_networks, module_digest

from ...compiler.cuda_cases import GPU
from ...compiler.workbench import (
    CHOICES,
    HOST,
    SyntheticPool,
    device,
    in_dtypes,
    mixed_lut,
    needs_int8,
    network_job,
    random_lut,
)

CLASSES = 10


@pytest.fixture(scope="module")
def tiny_lut(tiny_space: SearchSpace) -> LatencyLUT:
    return random_lut(tiny_space, tiny_space.all_blocks(CLASSES), HOST)


def job(space: SearchSpace, architecture: Architecture, folder: Path, seed: int = 0) -> NetworkJob:
    return network_job(architecture.blocks(space, CLASSES), folder / f"{architecture.key}-{seed}.so", seed)


def test_networks_are_right_and_a_wrong_one_is_an_outcome(
    tiny_space: SearchSpace,
    tiny_lut: LatencyLUT,
    shared_pool: WorkerPool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(networks, "_MOST_PROCESSES", 2)  # enough for a process that takes over
    deep = replace(tiny_space, depths=(1, 2, 3))  # the second and the third block of a stage are one function
    small, large = (job(deep, a, tmp_path) for a in (deep.smallest, deep.largest))
    assert len(set(large.blocks)) < len(large.blocks)
    wrong = job(tiny_space, tiny_space.smallest, tmp_path, seed=1)
    wrong.logits[0, 3] += 1.0
    right, failed, also_right = compile_networks(tiny_lut, HOST, [small, wrong, large], progress=False)
    for outcome, network in ((right, small), (also_right, large)):
        assert outcome.error is None
        assert outcome.seconds is not None
        assert network.library.is_file()
    assert failed.seconds is None
    assert failed.error is not None
    assert failed.error.startswith("wrong result: relative error")
    assert failed.max_error is not None
    assert failed.max_error > 0.01


def test_a_network_that_does_not_build_is_an_outcome(
    tiny_space: SearchSpace, tiny_lut: LatencyLUT, shared_pool: WorkerPool, tmp_path: Path
) -> None:
    network = job(tiny_space, tiny_space.smallest, tmp_path)
    stem = network.blocks[0].key
    key, point = tiny_lut.rows[stem].schedules[0]
    broken = LatencyLUT(
        tiny_lut.header, {**tiny_lut.rows, stem: replace(tiny_lut.rows[stem], schedules=((key, point[:-1]),))}
    )
    (outcome,) = compile_networks(broken, HOST, [network], progress=False)
    assert outcome.seconds is None
    assert outcome.error == (
        f"ScheduleError: expected a point of {len(point)} integers for workload {key}, got {len(point) - 1}"
    )
    assert not network.library.exists()


def test_outcomes_come_in_the_order_of_the_jobs(
    tiny_space: SearchSpace, tiny_lut: LatencyLUT, synthetic_pool: SyntheticPool, tmp_path: Path
) -> None:
    jobs = [job(tiny_space, tiny_space.smallest, tmp_path, seed) for seed in range(5)]
    synthetic_pool.seconds = lambda asked: float(asked.path.stem[-1])
    outcomes = compile_networks(tiny_lut, HOST, jobs, progress=False)
    assert [o.seconds for o in outcomes] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_network_is_timed_in_three_processes_and_in_two_more_where_they_disagree(
    tiny_space: SearchSpace, tiny_lut: LatencyLUT, synthetic_pool: SyntheticPool, tmp_path: Path
) -> None:
    steady, moody = (job(tiny_space, tiny_space.smallest, tmp_path, seed) for seed in range(2))

    def seconds(asked: Any) -> float:
        if asked.path == steady.library:
            return 1.0 + 0.01 * synthetic_pool.num_renewed
        return (1.0, 1.2, 1.0, 1.1, 1.3)[synthetic_pool.num_renewed]

    synthetic_pool.seconds = seconds
    first, second = compile_networks(tiny_lut, HOST, [steady, moody], progress=False)
    assert synthetic_pool.num_renewed == 4
    assert first.seconds == 1.01
    assert first.disagreement == pytest.approx(0.02 / 1.02)
    assert second.seconds == 1.1
    assert second.disagreement == pytest.approx(0.3 / 1.3)
    timed = Counter(synthetic_pool.timed)
    assert (timed[steady.library], timed[moody.library]) == (9, 15)


def test_no_networks_are_no_outcomes(tiny_lut: LatencyLUT, synthetic_pool: SyntheticPool) -> None:
    assert compile_networks(tiny_lut, HOST, [], progress=False) == []


def test_a_network_with_a_block_that_the_table_lacks_is_refused(
    tiny_space: SearchSpace, tiny_lut: LatencyLUT, synthetic_pool: SyntheticPool, tmp_path: Path
) -> None:
    network = job(tiny_space, tiny_space.smallest, tmp_path)
    last = network.blocks[-1].key
    holed = LatencyLUT(tiny_lut.header, {k: r for k, r in tiny_lut.rows.items() if k != last})
    with pytest.raises(LUTError, match=rf"no row for block {last}; run `chanas prescheduler` to fill it"):
        compile_networks(holed, HOST, [network], progress=False)


def test_the_points_of_a_network_are_those_of_its_rows(tiny_space: SearchSpace, tiny_lut: LatencyLUT) -> None:
    blocks = tiny_space.largest.blocks(tiny_space, CLASSES)
    rows: list[LUTRow] = [tiny_lut.rows[b.key] for b in blocks]
    assert block_points(tiny_lut, blocks) == [[point for _, point in row.schedules] for row in rows]


@pytest.mark.parametrize("version", [None, BACKENDS["llvm"].space_version])
def test_points_of_an_unknown_version_are_taken_to_be_of_todays(
    tiny_space: SearchSpace, tiny_lut: LatencyLUT, version: int | None
) -> None:
    blocks = tiny_space.smallest.blocks(tiny_space, CLASSES)
    table = replace(tiny_lut, header=replace(tiny_lut.header, space_version=version))
    assert block_points(table, blocks) == block_points(tiny_lut, blocks)


def test_points_of_another_version_are_not_compiled(
    tiny_space: SearchSpace, tiny_lut: LatencyLUT, synthetic_pool: SyntheticPool, tmp_path: Path
) -> None:
    """They would be other programs; latencies hold."""
    blocks = tiny_space.smallest.blocks(tiny_space, CLASSES)
    table = replace(tiny_lut, header=replace(tiny_lut.header, space_version=99))
    with pytest.raises(LUTError, match=r"are of version 99 of the schedule spaces.*`chanas prescheduler`") as error:
        compile_networks(table, HOST, [job(tiny_space, tiny_space.smallest, tmp_path)], progress=False)
    assert "\n" not in str(error.value)
    assert synthetic_pool.built == []
    assert sum(map(table.block_s, blocks)) == sum(map(tiny_lut.block_s, blocks))


def test_the_case_of_a_network_has_an_image_then_weights_then_padded_logits(
    tiny_space: SearchSpace, tmp_path: Path
) -> None:
    network = job(tiny_space, tiny_space.smallest, tmp_path)
    case = networks._case(network, device(lanes=16))
    np.testing.assert_array_equal(case.arguments[0], network.images[0].reshape(3, -1))
    assert case.weights == tuple(range(1, len(case.arguments)))
    assert case.expected.shape == (1, 1, 16)
    assert case.expected[0, 0, :CLASSES].tolist() == network.logits[0].tolist()
    assert np.all(case.expected[0, 0, CLASSES:] == 0.0)


def test_weights_of_another_network_are_refused(tiny_space: SearchSpace, tmp_path: Path) -> None:
    network = job(tiny_space, tiny_space.smallest, tmp_path)
    del network.parameters[2]["depthwise.conv.weight"]
    with pytest.raises(CheckpointError, match=r"parameter depthwise.conv.weight of block mbconv-.* is missing"):
        networks._case(network, device(lanes=16))


def test_a_target_takes_as_many_of_the_images_as_its_batch_has(tiny_space: SearchSpace, tmp_path: Path) -> None:
    """One job serves targets of different batches."""
    network = network_job(tiny_space.smallest.blocks(tiny_space, CLASSES), tmp_path / "network.so", batch=3)
    case = networks._case(network, in_batches(GPU, 2))
    np.testing.assert_array_equal(case.arguments[0], network.images[:2].reshape(6, -1))
    np.testing.assert_array_equal(case.expected, network.logits[:2])
    assert networks._case(network, HOST).expected.shape[1:] == (1, HOST.vector_lanes)
    with pytest.raises(MeasureError, match=r"^expected at least 4 images of a network for cuda-sm_90-b4, got 3$"):
        networks._case(network, in_batches(GPU, 4))


# ---- several dtypes -------------------------------------------------------------------------------------------------
def mixed_table(space: SearchSpace) -> LatencyLUT:
    """Tables of all blocks of a space in float32 and in int8."""
    blocks = [replace(b, dtype=dtype) for dtype in ("float32", "int8") for b in space.all_blocks(CLASSES)]
    return mixed_lut(space, [*blocks, *space.all_conversions("int8")])


def test_the_points_of_a_network_are_those_of_the_rows_of_its_dtypes() -> None:
    lut, blocks = mixed_table(CHOICES), in_dtypes(CHOICES.largest, "fiifif").blocks(CHOICES, CLASSES)
    tables = {"float32": lut, **lut.others}
    expected = [[point for _, point in tables[b.dtype].rows[b.key].schedules] for b in blocks]
    assert block_points(lut, blocks) == expected
    conversion = next(b for b in blocks if b.converts)
    assert [points for b, points in zip(blocks, expected, strict=True) if b.converts] == [[]] * 3
    del lut.others["int8"].rows[conversion.key]
    with pytest.raises(LUTError, match=rf"no row for block {conversion.key}; run `chanas prescheduler` to fill it"):
        block_points(lut, blocks)


def test_points_of_another_version_are_not_compiled_in_any_dtype() -> None:
    lut, blocks = mixed_table(CHOICES), in_dtypes(CHOICES.largest, "fiifif").blocks(CHOICES, CLASSES)
    other = replace(lut.others["int8"], header=replace(lut.others["int8"].header, space_version=99))
    with pytest.raises(LUTError, match="are of version 99 of the schedule spaces"):
        block_points(replace(lut, others={"int8": other}), blocks)


def test_a_network_in_other_dtypes_is_another_module() -> None:
    lut = mixed_table(CHOICES)
    letters = ["ffffff", "iiiiii", "fiiiif", "iffffi", "fififf"]
    made = [in_dtypes(CHOICES.largest, each).blocks(CHOICES, CLASSES) for each in letters]
    digests = [module_digest(lut, HOST, blocks) for blocks in made]
    assert len(set(digests)) == len(letters)
    assert [module_digest(lut, HOST, blocks) for blocks in made] == digests


@needs_int8
def test_what_works_instead_is_found_in_each_dtype(
    shared_pool: WorkerPool, in_one_process: None, tmp_path: Path
) -> None:
    lut = mixed_table(CHOICES)
    blocks = in_dtypes(CHOICES.smallest, "fiiiif").blocks(CHOICES, CLASSES)
    head, rows = next(b for b in blocks if b.kind == "head"), lut.others["int8"].rows
    (key, point), *others = rows[head.key].schedules
    rows[head.key] = replace(rows[head.key], schedules=((key, (*point[:-1], 99)), *others), predicted_error=0.05)
    before = lut.rows[head.key]
    (outcome,) = compile_networks(lut, HOST, [network_job(blocks, tmp_path / "network.so")], progress=False)
    assert outcome.error is None
    found = dict(rows[head.key].schedules)[key]
    assert schedule_space(device_workloads(head, HOST)[0], HOST).contains(found)
    assert lut.rows[head.key] == before


# ---- schedules that nobody ran ---------------------------------------------------------------------------------------
def broken(*, predicted: bool = True) -> LatencyLUT:
    """A table whose stem, which all networks have, has a schedule that does not exist."""
    blocks = CHOICES.all_blocks(CLASSES)
    lut = random_lut(CHOICES, blocks, HOST)
    stem = next(b for b in blocks if b.kind == "stem").key
    ((key, point),) = lut.rows[stem].schedules
    schedules = ((key, (*point[:-1], 99)),)
    error = 0.05 if predicted else None
    row = replace(lut.rows[stem], schedules=schedules, predicted_error=error)
    return LatencyLUT(lut.header, {**lut.rows, stem: row})


def test_a_network_is_compiled_with_what_works_instead(
    shared_pool: WorkerPool, in_one_process: None, tmp_path: Path
) -> None:
    lut = broken()
    before = {key: row.schedules for key, row in lut.rows.items()}
    blocks = CHOICES.smallest.blocks(CHOICES, CLASSES)
    (outcome,) = compile_networks(lut, HOST, [network_job(blocks, tmp_path / "network.so")], progress=False)
    assert outcome.error is None
    assert outcome.seconds is not None
    stem, *others = blocks
    ((key, point),) = lut.rows[stem.key].schedules
    (workload,) = device_workloads(stem, HOST)
    assert key == workload.key
    assert schedule_space(workload, HOST).contains(point)
    assert all(lut.rows[b.key].schedules == before[b.key] for b in others)
    assert lut.rows[stem.key].predicted_error == 0.05


def test_of_rows_with_an_operator_that_fails_those_that_were_measured_keep_its_schedule(
    synthetic_pool: SyntheticPool, tmp_path: Path
) -> None:
    lut = random_lut(CHOICES, CHOICES.all_blocks(CLASSES), HOST)
    blocks = CHOICES.smallest.blocks(CHOICES, CLASSES)
    shared = ((used.key, key, point) for used in blocks for key, point in lut.rows[used.key].schedules)
    used, key, point, other = next(
        (used, key, point, other)
        for used, key, point in shared
        for other, row in lut.rows.items()
        if other != used and key in dict(row.schedules)
    )
    lut.rows[used] = replace(lut.rows[used], predicted_error=0.05)
    before = lut.rows[other]
    synthetic_pool.seconds = lambda _asked: "wrong result"
    synthetic_pool.check_error = lambda asked: "wrong result" if asked.what.point == point else None
    compile_networks(lut, HOST, [network_job(blocks, tmp_path / "network.so")], progress=False)
    assert dict(lut.rows[used].schedules)[key] != point
    assert lut.rows[other] == before


def test_a_row_that_was_measured_keeps_its_schedule_and_the_error_is_told(
    shared_pool: WorkerPool, in_one_process: None, tmp_path: Path
) -> None:
    lut = broken(predicted=False)
    job = network_job(CHOICES.smallest.blocks(CHOICES, CLASSES), tmp_path / "network.so")
    (outcome,) = compile_networks(lut, HOST, [job], progress=False)
    assert outcome.seconds is None
    assert "ScheduleError" in str(outcome.error)


@pytest.mark.slow
def test_a_table_is_calibrated_although_a_predicted_schedule_does_not_work(
    shared_pool: WorkerPool, in_one_process: None
) -> None:
    lut = broken()
    found = calibrate(lut, Task(CHOICES, CLASSES), HOST, num_networks=6, progress=False)
    assert found.num_networks == 6
