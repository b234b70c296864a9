"""chanas/workflows/searching of networks whose blocks are in several dtypes: tables of each, finalists judged as they
compute, bundles that say the dtypes."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chanas.bundle.codesign import CoDesign
from chanas.commands.search_text import bundle_lines
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.target import HardwareTarget
from chanas.core.usage import Usage
from chanas.devices.host import load_target
from chanas.errors import ConfigError, LUTError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest
from chanas.network.folding import GRIDS
from chanas.search.cosearch import SearchOutcome
from chanas.search.proof import Finalist, Proposal
from chanas.search.target import SearchTarget
from chanas.workflows.searching.hand_over import hand_over
from chanas.workflows.searching.schedules import bundle_rows, schedule_lines
from chanas.workflows.searching.sources import Prover
from chanas.workflows.searching.targets import hold_targets

from ...compiler.workbench import HOST, in_dtypes, needs_int8, random_lut
from .test_hand_over import CLASSES, write_task
from .test_int8 import InInt8

pytestmark = needs_int8
BOTH = ("f32", "int8")


def int8_target() -> HardwareTarget:
    """This machine in int8."""
    return load_target("cpu", 1, "int8")


@pytest.fixture(scope="module")
def run(tiny_space: SearchSpace, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """With tables in both dtypes."""
    made = RunDirectory(tmp_path_factory.mktemp("dtypes") / "run")
    write_task(made, tiny_space)
    blocks = tiny_space.all_blocks(len(CLASSES))
    random_lut(tiny_space, blocks, HOST).save(made.lut("cpu"))
    random_lut(tiny_space, [*blocks, *tiny_space.all_conversions("int8")], int8_target()).save(made.lut("cpu-int8"))
    return made


@pytest.fixture(scope="module")
def target(run: RunDirectory) -> SearchTarget:
    with hold_targets(run, InInt8(run), 1.0, dtypes=BOTH) as (held,):
        return held


@pytest.fixture(scope="module")
def prover(run: RunDirectory, target: SearchTarget) -> Prover:
    scratch = run.root.parent / "scratch"
    scratch.mkdir()
    return InInt8(run).prover([target], scratch, progress=False)


@pytest.fixture(scope="module")
def architecture(tiny_space: SearchSpace) -> Architecture:
    smallest = tiny_space.smallest
    letters = ("fi" * len(smallest.blocks(tiny_space)))[: len(smallest.blocks(tiny_space))]
    return in_dtypes(smallest, letters)


@pytest.fixture(scope="module")
def bundle(run: RunDirectory, prover: Prover, architecture: Architecture) -> CoDesign:
    (proof,) = prover([architecture])
    assert proof.error is None
    winner = Finalist(Proposal(architecture, (0.5,), 0.7, 0.01), proof, 1)
    unused: Any = None
    return hand_over(run, SearchOutcome(winner, (winner,), tuple(prover.targets), unused, 9, Path()), prover)


def test_a_target_has_the_tables_of_all_dtypes(target: SearchTarget) -> None:
    assert target.name == "cpu"
    assert target.hardware.dtype == "float32"
    assert target.hardware.has_dots == int8_target().has_dots
    assert list(target.lut.others) == ["int8"]


def test_a_missing_table_is_named_with_its_command(run: RunDirectory, tiny_space: SearchSpace, tmp_path: Path) -> None:
    other = RunDirectory(tmp_path)
    other.lut("cpu").parent.mkdir(parents=True)
    other.lut("cpu").write_bytes(run.lut("cpu").read_bytes())
    with (
        pytest.raises(
            StageOrderError, match=r"no latency table of target 'cpu-int8'.*chanas prescheduler.*--dtype int8"
        ),
        hold_targets(other, InInt8(run), 1.0, dtypes=BOTH),
    ):
        pass


def test_a_table_without_conversions_says_what_is_missing(tiny_space: SearchSpace, target: SearchTarget) -> None:
    blocks = tiny_space.all_blocks(len(CLASSES))
    without = dataclasses.replace(target.lut, others={"int8": random_lut(tiny_space, blocks, int8_target())})
    with pytest.raises(LUTError, match=r"'cpu-int8' lacks .*the first: encode-.*`chanas lut fill --dtype int8`"):
        without.table(tiny_space.with_dtypes(("float32", "int8")), len(CLASSES))


@pytest.mark.parametrize("usage", [Usage(dtype="int8")])
def test_the_target_itself_is_in_float32(run: RunDirectory, usage: Usage) -> None:
    with (
        pytest.raises(
            ConfigError, match="--dtypes is for processors, whose target says no dtype, such as cpu; got cpu-int8"
        ),
        hold_targets(run, InInt8(run), 1.0, usage, BOTH),
    ):
        pass


def test_the_bundle_says_the_dtype_of_each_block(bundle: CoDesign, architecture: Architecture) -> None:
    assert bundle.architecture == architecture
    rows = bundle_rows(bundle)
    assert [row["name"] for row in rows] == list(architecture.block_names())
    assert [row.get("dtype") for row in rows] == [block.dtype for block in bundle.blocks]
    assert sum(row["name"].startswith(("to int8", "from int8")) for row in rows) > 2
    assert all("\n" not in line for line in schedule_lines(rows))
    assert all(math.isfinite(row["latency_s"]) for row in rows)


def test_only_blocks_in_int8_say_what_their_numbers_stand_for(bundle: CoDesign, architecture: Architecture) -> None:
    of_int8 = {f"blocks.{i}.{GRIDS}" for i, dtype in enumerate(architecture.dtypes) if dtype == "int8"}
    assert {name for name in bundle.tensors if name.endswith(GRIDS)} == of_int8


def test_the_accuracy_is_that_of_the_compiled_network(prover: Prover, bundle: CoDesign) -> None:
    images, labels = prover.source.holdout(bundle.architecture)
    computed = bundle.predict(images)
    assert bundle.measured["top1_holdout"] == pytest.approx(np.mean(computed.argmax(1) == labels))
    assert bundle.measured["top1_holdout_float32"] == 0.75
    (line,) = (line for line in bundle_lines(bundle) if line.startswith("accuracy on holdout"))
    assert "in float32 and int8, 75.00% in float32" in line
    np.testing.assert_allclose(computed, bundle.torch_logits(images), atol=0.2 * np.abs(computed).max())


def test_it_comes_from_both_tables(run: RunDirectory, bundle: CoDesign) -> None:
    hashes = bundle.part["hashes"]
    assert hashes["lut"] == file_digest(run.lut("cpu"))
    assert hashes["lut-int8"] == file_digest(run.lut("cpu-int8"))


def test_rounding_is_judged_on_holdout_once_calibrated(prover: Prover, architecture: Architecture) -> None:
    source: Any = prover.source
    assert 0.0 <= source.top1_rounded(architecture) <= 1.0
    assert source.top1_rounded(architecture) == source.top1_rounded(architecture)
    assert source._in_int8(architecture.plain) is source._in_int8(architecture.plain)
