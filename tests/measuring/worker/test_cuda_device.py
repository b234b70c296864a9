"""chanas/devices/cuda_runtime.py and the GPU's worker on the GPU of this machine: skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.backends import case_of, schedule_space
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget, in_batches
from chanas.devices.cuda_runtime import CUDADevice, compiled_network
from chanas.devices.driver import find_gpu
from chanas.devices.host import load_target
from chanas.devices.timing import TimingSettings
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import BlockAt, Build, Crash, Measure, OperatorAt, Ping
from chanas.network.folding import packed_parameters
from chanas.operators.steps import device_workloads
from chanas.operators.workload import Workload
from chanas.prescheduler.tables.networks import NetworkJob, compile_networks

from ...compiler.cuda_cases import OF_THREE, WORKLOADS, key
from ...compiler.workbench import NANO, NUM_CLASSES, network_job, random_lut

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(find_gpu() is None, reason="there is no NVIDIA GPU"),
]
POINTS_EACH = 6


@pytest.fixture(scope="module")
def gpu() -> HardwareTarget:
    return load_target("cuda")


COLD = TimingSettings(cold_bytes=1)


@pytest.fixture(scope="module")
def gpu_pool(gpu: HardwareTarget) -> Iterator[WorkerPool]:
    with WorkerPool(gpu) as workers:
        yield workers


@pytest.mark.parametrize("workload", WORKLOADS + OF_THREE, ids=key)
def test_operators_compute_what_pytorch_does(
    gpu: HardwareTarget, gpu_pool: WorkerPool, tmp_path: Path, workload: Workload
) -> None:
    """Random points of each space; what a GPU alone has is tried here: barriers, sums over threads, machine code."""
    case = tmp_path / "case.npz"
    case_of(workload, gpu).save(case)
    for i, point in enumerate(schedule_space(workload, gpu).sample(POINTS_EACH, np.random.default_rng(1))):
        library = tmp_path / f"{i}.so"
        build = Build(target=gpu, what=OperatorAt(workload, point), path=library)
        assert gpu_pool.build(build, 60.0).result().error is None
        timed = gpu_pool.measure(Measure(library=library, case=case, settings=COLD), 60.0).result()
        assert timed.error is None, point
        assert 0.0 < timed.timing.seconds < 0.1


@pytest.mark.parametrize("block", NANO.all_blocks(NUM_CLASSES), ids=lambda b: b.key)
def test_blocks_compute_what_pytorch_does(
    gpu: HardwareTarget, gpu_pool: WorkerPool, tmp_path: Path, block: BlockConfig
) -> None:
    rng, library, case = np.random.default_rng(2), tmp_path / "block.so", tmp_path / "case.npz"
    case_of(block, gpu).save(case)
    points = [schedule_space(w, gpu).sample(1, rng)[0] for w in device_workloads(block, gpu)]
    build = Build(target=gpu, what=BlockAt(block, points), path=library)
    assert gpu_pool.build(build, 60.0).result().error is None
    timed = gpu_pool.measure(Measure(library=library, case=case), 60.0).result()
    assert timed.error is None


def test_a_crash_costs_one_candidate(gpu_pool: WorkerPool) -> None:
    assert "crash" in str(gpu_pool.measure(Crash(), 60.0).result().error)
    assert gpu_pool.measure(Ping(), 60.0).result().error is None


@pytest.fixture(scope="module")
def network(gpu: HardwareTarget, tmp_path_factory: pytest.TempPathFactory) -> NetworkJob:
    """A small network, compiled, checked and timed."""
    blocks = NANO.largest.blocks(NANO, NUM_CLASSES)
    job = network_job(blocks, tmp_path_factory.mktemp("network") / "network.so")
    (outcome,) = compile_networks(random_lut(NANO, blocks, gpu), gpu, [job], progress=False)
    assert outcome.error is None
    assert (outcome.seconds or 0.0) > 0.0
    return job


def test_a_graph_reads_each_image_anew(gpu: HardwareTarget, network: NetworkJob) -> None:
    """Whatever was captured with the first image, the second one has logits of its own, and the first its old ones."""
    packed = packed_parameters(network.blocks, network.parameters, gpu)
    run = compiled_network(network.library, packed, (3, NANO.largest.resolution, NANO.largest.resolution))
    first = run(network.images[0])
    assert np.abs(first - network.logits[0]).max() < 1e-4 * max(1.0, float(np.abs(network.logits[0]).max()))
    assert np.abs(run(100.0 * network.images[0]) - first).max() > 1e-3
    assert np.array_equal(run(network.images[0]), first)


def test_each_image_of_a_batch_has_its_own_logits(gpu: HardwareTarget, tmp_path: Path) -> None:
    """Nine images: one more than a multiple of 8, so that logits have spare rows."""
    target, blocks = in_batches(gpu, 9), NANO.largest.blocks(NANO, NUM_CLASSES)
    job = network_job(blocks, tmp_path / "network.so", batch=9)
    (outcome,) = compile_networks(random_lut(NANO, blocks, target), target, [job], progress=False)
    assert outcome.error is None
    packed = packed_parameters(blocks, job.parameters, target)
    shape = (3, NANO.largest.resolution, NANO.largest.resolution)
    logits = compiled_network(job.library, packed, shape, batch=9)(job.images)
    assert logits.shape == job.logits.shape
    assert np.abs(logits - job.logits).max() < 1e-4 * max(1.0, float(np.abs(job.logits).max()))


def test_the_device_times_what_it_is_given(gpu: HardwareTarget, network: NetworkJob) -> None:
    """Twice as many launches take longer; a flush is no part of a launch's time."""
    device = CUDADevice(gpu.l2_bytes)
    machine = device.load(network.library)
    packed = packed_parameters(network.blocks, network.parameters, gpu)
    image = device.tensor(network.images[0].reshape(3, -1))
    call = (machine["main"], (image, *(device.tensor(a) for a in packed), machine["new_output"]()))
    device.seconds([call] * 20, cold=False)
    assert device.seconds([call] * 200, cold=False) > device.seconds([call] * 20, cold=False)
    assert 0.0 < device.seconds([call] * 20, cold=True) < 1.0
