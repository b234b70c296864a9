"""Synthetic tables and accuracies: the search does not know that nothing was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pytest

from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import Genomes, encode, sample
from chanas.core.latency import LatencyLUT, LUTHeader, LUTRow
from chanas.core.target import tvm_version
from chanas.devices.host import load_target
from chanas.search.accuracy.encoding import Features, features

NUM_CLASSES = 10


def synthetic_lut(space: SearchSpace, seed: int = 0) -> LatencyLUT:
    """Seconds in proportion to multiply-accumulates, with 20 % of noise per block."""
    rng = np.random.default_rng(seed)
    header = LUTHeader(load_target("cpu"), tvm_version(), space.name, space.digest)
    rows = {
        block.key: LUTRow(block.num_macs * 1e-11 * (1.0 + 0.2 * rng.random()) + 1e-6, 1e-7, 16, ())
        for block in space.all_blocks(NUM_CLASSES)
    }
    return LatencyLUT(header, rows)


@dataclass
class SyntheticAccuracy:
    """Top-1 that grows with every choice, saturates, and has interactions between choices; counts its calls."""

    space: SearchSpace
    interactions: float = 0.5
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        reference = features(self.space, sample(self.space, 2000, rng))
        num = reference.shape[1]
        self.linear = np.abs(rng.normal(size=num))
        self.pairs = rng.normal(size=(num, 2))
        self.base, self.scale = self._parts(reference)
        self.asked: list[str] = []

    def _parts(self, x: Features) -> tuple[FloatArray, FloatArray]:
        raw = np.stack([x @ self.linear, *(x @ self.pairs).T])
        return raw.mean(axis=1, keepdims=True), raw.std(axis=1, keepdims=True)

    def many(self, genomes: Genomes) -> FloatArray:
        x = features(self.space, genomes)
        main, left, right = (np.stack([x @ self.linear, *(x @ self.pairs).T]) - self.base) / self.scale
        noise = self.noise * np.random.default_rng(len(x)).normal(size=len(x))
        top1: FloatArray = 0.8 + 0.05 * np.tanh((main + self.interactions * left * right) / 3) + noise
        return top1

    def __call__(self, architecture: Architecture) -> float:
        self.asked.append(architecture.key)
        return float(self.many(encode(self.space, [architecture]))[0])


@pytest.fixture(scope="session")
def demo_space() -> SearchSpace:
    return SearchSpace.load("mbv3-32")


@pytest.fixture
def make_lut() -> Callable[..., LatencyLUT]:
    return synthetic_lut


@pytest.fixture
def make_accuracy() -> Callable[..., SyntheticAccuracy]:
    return SyntheticAccuracy


@pytest.fixture
def no_torch() -> Callable[[Iterable[str]], str]:
    """A program that imports modules and says whether torch came with them."""

    def program(modules: Iterable[str]) -> str:
        lines = [f"import {module}" for module in modules]
        return "\n".join(["import sys", *lines, "print('torch' in sys.modules, 'sklearn' in sys.modules)"])

    return program


@pytest.fixture(scope="session")
def tiny_genomes(tiny_space: SearchSpace) -> Genomes:
    """All architectures of the tiny space, int16[1600, L]."""
    from itertools import product

    blocks = list(product(tiny_space.kernel_sizes, tiny_space.expand_ratios))
    stages = [choice for depth in tiny_space.depths for choice in product(blocks, repeat=depth)]
    every = [
        Architecture(r, w, bodies)
        for r in tiny_space.resolutions
        for w in tiny_space.width_multipliers
        for bodies in product(stages, repeat=tiny_space.num_stages)
    ]
    assert len(every) == tiny_space.num_architectures
    return encode(tiny_space, every)
