"""chanas/compiler/backends.py: every kind of device has all that the prescheduler asks for, and TVM waits
until it is needed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from chanas.bundle.runtimes import RUNTIMES
from chanas.compiler.backends import BACKENDS, case_of
from chanas.compiler.cases import network_case, random_network
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget, in_batches
from chanas.measuring.checks.target_check import small_block
from chanas.measuring.worker.process import WORKERS
from chanas.operators.steps import device_workloads, tuned_workloads
from chanas.prescheduler.records.store import UNVERSIONED_SPACES

from .cuda_cases import GPU
from .workbench import HOST, NANO, NUM_CLASSES

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {"CPU": HOST, "GPU": GPU, "GPU, three images": in_batches(GPU, 3)}
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def test_every_kind_of_target_has_a_back_end_and_a_runtime() -> None:
    kinds = set(get_args(get_type_hints(HardwareTarget)["kind"]))
    assert kinds == set(BACKENDS) == set(RUNTIMES) == set(WORKERS) == set(UNVERSIONED_SPACES)


def test_a_worker_is_a_module_of_its_own() -> None:
    for option, module in WORKERS.values():
        assert option == "-m"
        assert importlib.util.find_spec(module) is not None
    assert len({*WORKERS.values()}) == len(WORKERS)


@each_target
def test_operators_are_tuned_once_however_many_blocks_have_them(target: HardwareTarget) -> None:
    blocks: list[BlockConfig] = [small_block(), small_block()]
    assert tuned_workloads(blocks, target) == list(dict.fromkeys(device_workloads(small_block(), target)))


@each_target
def test_a_network_has_the_arguments_of_its_blocks(target: HardwareTarget) -> None:
    blocks = NANO.smallest.blocks(NANO, NUM_CLASSES)
    case = network_case(blocks, *random_network(blocks, seed=0, batch=target.batch), target)
    alone = [case_of(block, target) for block in blocks]
    shapes = [c.arguments[i].shape for c in alone for i in c.weights]
    assert [case.arguments[i].shape for i in case.weights] == shapes


ASK = """
import sys
from chanas.devices.target_files import arch_target
from chanas.operators.steps import device_workloads
from chanas.measuring.checks.target_check import small_block
from chanas.compiler.backends import backend_of
gpu = arch_target("sm_90")
print(len(device_workloads(small_block(), gpu)), backend_of(gpu).space_version, "tvm" in sys.modules)
"""


def test_what_a_gpu_has_is_known_without_tvm() -> None:
    done = subprocess.run([sys.executable, "-c", ASK], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", str(BACKENDS["cuda"].space_version), "False"]
