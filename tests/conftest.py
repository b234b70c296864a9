"""What all tests share. Threads are limited before numpy, torch or TVM start theirs."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("MPLBACKEND", "Agg")
# PyTorch, TVM and all tests stay to the end: no garbage is looked for among them (`pytest_collection_finish`).
gc.disable()
# No test waits for what else is timed on this machine, nor for those of another process.
_LOCKS = tempfile.TemporaryDirectory(prefix="chanas-test-locks-")
os.environ["CHANAS_LOCK_FOLDER"] = _LOCKS.name
# Nor does one know a picture from an earlier run of the tests.
_CACHE = tempfile.TemporaryDirectory(prefix="chanas-test-cache-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

from pathlib import Path

import numpy as np
import pytest
from forked_workers import Nursery
from hypothesis import settings
from networks import save_exported, save_onnx, tune_quickly
from processors import CPUINFO, plant
from quick_export import remember_operators

from chanas.core.arch import SearchSpace, StageSpec
from chanas.core.processor import host_processor
from chanas.devices.host import load_target
from chanas.export import driver
from chanas.measuring import fleet as local
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.worker import process as worker_process
from chanas.measuring.worker.compiler import Compiler, open_compiler

if TYPE_CHECKING:
    from .compiler.workbench import SyntheticPool, Workbench

# Every run draws other examples, in CI always the same ones; forty instead of a hundred leave the time for other tests.
settings.register_profile("default", deadline=None, max_examples=40)
settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


FIRST = ("test_sigkill.py", "test_distributed.py", "test_programs.py", "workflows")
"""Files and folders whose tests take longest: of two processes none is left alone with them in the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write what commands print to tests/commands/golden.")
    parser.addoption("--processor", choices=sorted(CPUINFO), help="Run as on this one; skip tests that run its code.")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.processor:
        plant(CPUINFO[config.option.processor])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """State the processor that results may depend on."""
    found, planted = host_processor(), terminalreporter.config.option.processor
    vectors = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd") if flag in found.used_flags]
    terminalreporter.write_line(
        f"processor: {found.device or found.part} with {', '.join(vectors) or 'no vectors'}"
        f"{f' (planted: {planted})' if planted else ''}"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.processor:
        items[:] = [item for item in items if item.get_closest_marker("real_processor") is None]
    items.sort(key=lambda item: not any(name in item.path.parts for name in FIRST))


def pytest_collection_finish() -> None:
    remember_operators()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    folder = Path(__file__).parent / "measuring"
    started = Nursery([folder / "planted_", folder / "stand_in.py"])
    yield started
    started.close()


@pytest.fixture(scope="session", autouse=sys.platform == "linux")
def workers_are_copies(nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers start at once, as copies of one; this machine can't run code that is made for a planted processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "subprocess", nursery)
        if request.config.option.processor:
            patch.setattr(nursery, "Popen", lambda *_, **__: pytest.skip("runs code of the planted processor"))
        yield


@pytest.fixture(scope="module")
def real_workers() -> Iterator[None]:
    """Workers, and what opens networks, are processes of their own from the beginning: how they start and end is what
    is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "subprocess", subprocess)
        yield


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    """One timing worker and the compiling ones of this machine, one thread each: they start once for all tests."""
    with WorkerPool(load_target("cpu", num_threads=1)) as workers:
        yield workers


@pytest.fixture(scope="session")
def workbench(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    from .compiler.workbench import Workbench

    return Workbench(pool, tmp_path_factory.mktemp("workbench"))


@pytest.fixture
def shared_pool(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> WorkerPool:
    """Whoever would start workers of their own gets those that are there."""
    monkeypatch.setattr(local, "WorkerPool", lambda _target: contextlib.nullcontext(pool))
    return pool


@pytest.fixture
def synthetic_pool(monkeypatch: pytest.MonkeyPatch) -> SyntheticPool:
    """Whoever would start workers gets invented seconds, at once."""
    from .compiler.workbench import SyntheticPool

    invented = SyntheticPool()
    monkeypatch.setattr(local, "WorkerPool", lambda _target: invented)
    return invented


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks are timed in one process instead of three to five, each of which starts anew."""
    monkeypatch.setattr("chanas.prescheduler.tables.networks._MOST_PROCESSES", 1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def no_build_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be compiled in this process: it is done in another one, where an abort ends nobody else."""
    import tvm

    from chanas.compiler.cpu import build, c_kernels
    from chanas.compiler.cuda import build as cuda_build
    from chanas.compiler.cuda.nvrtc import NVRTCLibrary

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the compiler runs in the process of the user")

    for module, name in (
        (tvm, "compile"),
        (tvm.tirx, "build"),
        (tvm.relax, "build"),
        (build, "build_object"),
        (build, "build_network"),
        (c_kernels, "compile_kernel"),
        (cuda_build, "build_kernel"),
        (cuda_build, "cuda_source"),
        (NVRTCLibrary, "compile"),
    ):
        monkeypatch.setattr(module, name, refuse)


@pytest.fixture(scope="session")
def tuned_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny network of PyTorch tuned with one trial per operator; it lies in `net.pt2` beside the folder."""
    place = tmp_path_factory.mktemp("tuned")
    return tune_quickly(save_exported(place / "net.pt2"), place / "net", place)


@pytest.fixture(scope="session")
def tuned_onnx_folder(tuned_folder: Path) -> Path:
    """The same network from an ONNX file, `other.onnx` beside the folder; its operators were tuned already."""
    place = tuned_folder.parent
    return tune_quickly(save_onnx(place / "other.onnx"), place / "other", place)


@pytest.fixture
def copied(tuned_folder: Path, tmp_path: Path) -> Path:
    """A copy of that folder, which a test may spoil."""
    return Path(shutil.copytree(tuned_folder, tmp_path / "net"))


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    """One process that compiles for all tests: each would start TVM in one of its own."""
    with open_compiler(load_target("cpu")) as opened:
        yield opened


@pytest.fixture(scope="module")
def one_compiler(compiler: Compiler) -> Iterator[None]:
    """Who exports a network compiles in that process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "open_compiler", lambda _target: contextlib.nullcontext(compiler))
        yield


@pytest.fixture(scope="session")
def tiny_space() -> SearchSpace:
    """Two stages of one or two blocks: small enough to list all of its 2·2·(4 + 16)² = 1,600 architectures."""
    return SearchSpace(
        name="tiny",
        resolutions=(12, 16),
        width_multipliers=(1.0, 1.5),
        kernel_sizes=(3, 5),
        expand_ratios=(2, 3),
        depths=(1, 2),
        in_channels=3,
        stem_width=8,
        stem_stride=2,
        first_width=8,
        stages=(
            StageSpec(width=16, stride=1, activation="relu", use_se=False),
            StageSpec(width=24, stride=2, activation="hswish", use_se=True),
        ),
        head_width=32,
        feature_width=32,
    )
