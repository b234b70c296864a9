"""Whole networks with random weights: what a latency depends on is the architecture, not what the weights say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chanas.bundle.codesign import write_bundle
from chanas.compiler.cases import random_network
from chanas.core import genome
from chanas.core.arch import Architecture, SearchSpace, SubSpace
from chanas.core.arrays import Float32Array
from chanas.core.target import HardwareTarget, tvm_version
from chanas.prescheduler.tables.networks import NetworkJob

# Keeps these architectures apart from any that a table of the same seed was calibrated against.
_STREAM = 20


def random_architectures(
    space: SearchSpace, num: int, seed: int, sub_space: SubSpace | None = None
) -> list[Architecture]:
    """`num` distinct architectures drawn uniformly, inside `sub_space` when one is given."""
    rng = np.random.default_rng([_STREAM, seed])
    found: dict[Architecture, None] = {}
    while len(found) < num:
        found.update(dict.fromkeys(genome.decode(space, genome.sample(space, num, rng, sub_space))))
    return list(found)[:num]


def random_job(
    space: SearchSpace, architecture: Architecture, num_classes: int, library: Path, seed: int
) -> NetworkJob:
    """The job that compiles an architecture with random weights, a random image and PyTorch's logits for it."""
    blocks = architecture.blocks(space, num_classes)
    return NetworkJob(blocks, *random_network(blocks, seed), library)


def write_random_bundle(
    path: Path, space: SearchSpace, architecture: Architecture, job: NetworkJob, target: HardwareTarget
) -> None:
    """A bundle as search leaves it, of a compiled job; nothing in it was trained or searched."""
    document = {
        "architecture": architecture.to_json(),
        "space": space.to_json(),
        "class_names": [str(i) for i in range(job.blocks[-1].out_channels)],
        "preprocess": {"resolution": architecture.resolution, "mean": [0.5] * 3, "std": [0.5] * 3, "crop_ratio": 1.0},
        "targets": [{"target": target.to_json()}],
        "versions": {"tvm": tvm_version()},
    }
    write_bundle(path, document, _named(job.parameters), [job.library])


def _named(parameters: Sequence[dict[str, Float32Array]]) -> dict[str, Float32Array]:
    """Parameters of a whole network by name, from those of its blocks."""
    return {f"blocks.{i}.{name}": np.array(v) for i, part in enumerate(parameters) for name, v in part.items()}
