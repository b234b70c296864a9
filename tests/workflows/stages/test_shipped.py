"""chanas/workflows/stages/shipped.py: tables that come with chanas, and which of them is the nearest."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tables import random_table

from chanas.core.arch import SearchSpace
from chanas.core.latency import LatencyLUT
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.core.usage import DTYPES
from chanas.devices.host import load_target
from chanas.errors import ConfigError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.workflows.searching.sources import AccuracyFile, open_source
from chanas.workflows.stages.shipped import find_table, nearest_table, shipped_tables
from chanas.workflows.stages.stored import no_table

HERE = load_target("cpu")


def processor(lanes: int = 16, threads: int = 1, dtype: str = "f32") -> HardwareTarget:
    name = f"cpu{'' if threads == 1 else f'-{threads}t'}{'' if dtype == 'f32' else f'-{dtype}'}"
    return dataclasses.replace(HERE, name=name, vector_lanes=lanes, num_threads=threads, dtype=DTYPES[dtype])


def nearest(target: HardwareTarget, space: SearchSpace | None = None) -> str | None:
    found = nearest_table(target, space)
    return None if found is None else found[0]


def test_tables_are_found_by_path_and_by_name(tmp_path: Path, tiny_space: SearchSpace) -> None:
    random_table(tiny_space).save(tmp_path / "known.json")
    assert find_table(tmp_path / "known.json") == tmp_path / "known.json"
    assert LatencyLUT.load(find_table("mbv3-amd-zen4-cpu")).header.space == "mbv3"
    with pytest.raises(ConfigError, match="mbv3-amd-zen4-cpu"):
        find_table("mbv3-amd-zen9-cpu")


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (processor(), "mbv3-amd-zen4-cpu"),
        (processor(lanes=8), "mbv3-amd-zen4-cpu"),
        (processor(threads=4), "mbv3-amd-zen4-cpu-2t"),
        (processor(dtype="bf16"), "mbv3-amd-zen4-cpu-bf16"),
    ],
)
def test_the_nearest_table_is_that_of_the_same_dtype_and_use(target: HardwareTarget, name: str) -> None:
    assert nearest(target) == nearest(target, SearchSpace.load("mbv3")) == name
    assert name in shipped_tables()


def test_no_table_has_the_blocks_of_other_spaces_or_of_gpus(tiny_space: SearchSpace) -> None:
    assert nearest(HERE, tiny_space) is None

    assert nearest(dataclasses.replace(HERE, kind="cuda")) is None


# ---- what is said where there is no table ---------------------------------------------------------------------------
def message(tmp_path: Path, target: HardwareTarget, space: str, num_classes: int = 1000) -> str:
    run = RunDirectory(tmp_path)
    return str(no_table(run, target, Task(SearchSpace.load(space), num_classes))).replace(str(tmp_path), "RUN")


def test_the_command_names_the_table_that_fits_best(tmp_path: Path) -> None:
    assert "`chanas lut adapt --from mbv3-amd-zen4-cpu --run RUN`" in message(tmp_path, processor(), "mbv3")
    assert "`chanas lut adapt --from mbv3-amd-zen4-cpu-2t --threads 2 --run RUN`" in message(
        tmp_path, processor(threads=2), "mbv3"
    )
    assert "--from mbv3-amd-zen4-cpu --num-classes 10 --run RUN`" in message(tmp_path, processor(), "mbv3", 10)


def test_where_no_table_has_the_spaces_blocks_none_is_named(tmp_path: Path) -> None:
    text = message(tmp_path, processor(), "mbv3-32", 10)
    assert "adapt" not in text
    assert text.endswith("run `chanas prescheduler --target cpu --space mbv3-32 --run RUN` first")


def test_the_prescheduler_is_told_the_space_where_it_is_not_the_one_it_would_take(tmp_path: Path) -> None:
    assert "`chanas prescheduler --target cpu --space mbv3 --num-classes 1000 --run RUN`" in message(
        tmp_path, processor(), "mbv3"
    )
    assert "`chanas prescheduler --target cpu --space mbv3-32 --run RUN`" in message(
        tmp_path, processor(), "mbv3-32", 10
    )


def test_a_search_by_accuracies_passes_on_the_space_that_it_is_told(tmp_path: Path) -> None:
    with pytest.raises(StageOrderError, match=r"--space mbv3 --num-classes 1000 --run .*--from mbv3-amd-zen4"):
        open_source(RunDirectory(tmp_path), AccuracyFile("ofa.csv", "mbv3", 1000))
    with pytest.raises(ConfigError, match="unknown search space 'nosuch'"):
        open_source(RunDirectory(tmp_path), AccuracyFile("ofa.csv", "nosuch"))
