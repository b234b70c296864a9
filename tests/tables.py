"""Latency tables that nobody measured, and spaces in files: for the tests of what is done with tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from chanas.arch import SearchSpace, SubSpace
from chanas.latency import LatencyLUT, LUTHeader, LUTRow
from chanas.target import load_target, tvm_version

CLASSES = 10


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
