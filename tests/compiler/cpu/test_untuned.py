"""chanas/compiler/cpu/untuned.py: blocks in TVM's own operators compute what PyTorch does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.cases import plain_block_case
from chanas.compiler.cpu.untuned import _epilogue, block_module
from chanas.core.blocks import BlockConfig
from chanas.devices.timing import TimingSettings
from chanas.errors import ScheduleError
from chanas.measuring.fleet import WorkerPool
from chanas.measuring.messages import Build, Measure, UntunedBlock
from chanas.operators.steps import block_workloads

from ..workbench import HOST

BLOCKS = {
    "stem": BlockConfig("stem", 9, 3, 0, 8, 3, 2, "hswish"),
    "first": BlockConfig("mbconv", 5, 8, 8, 8, 3, 1, "relu", residual=True),
    "gated": BlockConfig("mbconv", 6, 8, 24, 16, 5, 2, "hswish", use_se=True),
    "gated-residual": BlockConfig("mbconv", 4, 16, 32, 16, 3, 1, "hswish", use_se=True, residual=True),
    "head": BlockConfig("head", 3, 16, 0, 24, activation="hswish"),
    "classifier": BlockConfig("classifier", 1, 24, 32, 5, activation="hswish"),
}
each_block = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)


@each_block
def test_a_block_is_built_checked_and_timed(block: BlockConfig, pool: WorkerPool, tmp_path: Path) -> None:
    case, library = tmp_path / "case.npz", tmp_path / "block.so"
    plain_block_case(block).save(case)
    build = Build(target=HOST, what=UntunedBlock(block), path=library)
    assert pool.build(build, 60.0).result().error is None
    for cold_bytes in (0, 1 << 16):
        settings = TimingSettings(repeats=1, min_repeat_s=1e-6, cold_bytes=cold_bytes)
        timed = pool.measure(Measure(library=library, case=case, settings=settings, form="network"), 60.0).result()
        assert timed.error is None
        assert timed.timing.max_error < 1e-4
        assert timed.timing.seconds > 0


@each_block
def test_the_arguments_of_the_case_are_those_of_the_program(block: BlockConfig) -> None:
    case = plain_block_case(block)
    shapes = [tuple(int(n) for n in p.ty.shape) for p in block_module(block)["main"].params]
    assert [a.shape for a in case.arguments] == shapes
    assert case.weights == tuple(range(1, len(shapes)))


def test_a_wrong_block_is_seen(pool: WorkerPool, tmp_path: Path) -> None:
    block = BLOCKS["first"]
    case = plain_block_case(block)
    np.asarray(case.expected)[...] += 1.0
    case.save(tmp_path / "case.npz")
    library = tmp_path / "block.so"
    pool.build(Build(target=HOST, what=UntunedBlock(block), path=library), 60.0).result()
    answer = pool.measure(Measure(library=library, case=tmp_path / "case.npz", form="network"), 60.0).result()
    assert answer.error is not None
    assert (answer.error.max_error or 0.0) > 0.1


def test_the_operators_are_those_that_are_tuned() -> None:
    """One convolution for every operator that has weights, none for a mean."""
    for block in BLOCKS.values():
        num = sum(w.op != "pool" for w in block_workloads(block))
        assert str(block_module(block)).count("R.nn.conv2d") == num


def test_an_epilogue_that_blocks_do_not_have_is_refused() -> None:
    from tvm import relax

    x = relax.Var("x", relax.TensorType((1,), "float32"))
    with pytest.raises(ScheduleError, match="got relu6"):
        _epilogue(relax.BlockBuilder(), "relu6", x)
