"""Latency tables that nobody measured, spaces and accuracies in files, and a search of a second over them: for the
tests of what is done with tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from chanas.core import genome
from chanas.core.arch import SearchSpace, SubSpace
from chanas.core.latency import LatencyLUT, LUTHeader, LUTRow
from chanas.core.target import tvm_version
from chanas.devices.host import load_target
from chanas.search.config import SearchConfig
from chanas.search.evolution.evolution import EvolutionConfig

CLASSES = 10
QUICK_SEARCH = SearchConfig(
    predictor="ridge",
    cross_validate=False,
    num_samples=40,
    num_finalists=1,
    pareto_generations=0,
    num_cloud=0,
    evolution=EvolutionConfig(population=20, generations=5),
)


def random_table(
    space: SearchSpace,
    seed: int = 0,
    num_classes: int = CLASSES,
    sub_spaces: Sequence[SubSpace] | None = None,
) -> LatencyLUT:
    """A row of random seconds for every block of the space, or of some of its sub-spaces."""
    rng = np.random.default_rng(seed)
    header = LUTHeader(load_target("cpu"), tvm_version(), space.name, space.digest)
    blocks = space.all_blocks(num_classes, None if sub_spaces is None else tuple(sub_spaces))
    when = "2026-01-02T03:04:05+00:00"
    return LatencyLUT(header, {b.key: LUTRow(1e-6 + rng.random() * 1e-3, 1e-7, 4, (), when) for b in blocks})


def save_space(space: SearchSpace, path: Path) -> Path:
    """The space as a YAML file, as a user writes one."""
    path.write_text(yaml.safe_dump({k: v for k, v in space.to_json().items() if k != "schema"}), encoding="utf-8")
    return path


def save_accuracies(space: SearchSpace, path: Path, num_classes: int = CLASSES, more: Sequence[str] = ()) -> Path:
    """A CSV of 60 random architectures, the larger the more accurate, and of the rows that are given."""
    drawn = genome.decode(space, genome.sample(space, 60, np.random.default_rng(0)))
    rows = [f"{a.key},{50 + 10 * a.num_macs(space, num_classes) / 1e6:.3f}" for a in drawn]
    path.write_text("\n".join(["architecture,top1", *rows, *more]) + "\n", encoding="utf-8")
    return path
