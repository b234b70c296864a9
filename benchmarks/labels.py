"""Accuracies to learn: synthetic ones that behave as a once-for-all supernet's do, and those of a run's own supernet.

Notation: N architectures, F features. Top-1 is in [0, 1]; a point is a hundredth of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chanas.core.arch import SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import GenomeLayout, Genomes, decode, sample
from chanas.files.run import RunDirectory
from chanas.search.accuracy.encoding import feature_map
from chanas.search.accuracy.evaluations import EvaluationStore, training_set
from chanas.search.evolution.population import unique

# Once-for-all's MobileNetV3 sub-networks lie between 67 and 80 % on ImageNet (Cai et al., ICLR 2020, figure 9).
_MIDDLE, _HALF_RANGE = 0.735, 0.065
EVALUATIONS = "accuracy_predictor.jsonl"

Top1 = Callable[[Genomes], FloatArray]


@dataclass(frozen=True)
class Accuracies:
    """Architectures of a space with the labels that a predictor learns from, and the truth that it is judged by.

    genomes  int16[N, L], each once    labels  float64[N] with noise of evaluation
    truth    float64[N], free of noise where that is known, else the labels
    """

    name: str
    space: SearchSpace
    genomes: Genomes
    labels: FloatArray
    truth: FloatArray


def _gains(space: SearchSpace, rng: np.random.Generator) -> FloatArray:
    """float64[F]: what each choice adds, more for the larger one with diminishing returns, unlike in each block."""
    parts = []
    for num in GenomeLayout(space).num_choices:
        steps = np.linspace(0.0, 1.0, int(num)) ** 0.7 if num > 1 else np.zeros(int(num))
        parts.append(steps * rng.lognormal(sigma=0.5))
    return np.concatenate(parts)


def synthetic(space: SearchSpace, seed: int) -> Mapping[str, Top1]:
    """Three kinds of accuracies over a space, made from one draw of gains of the choices.

    additive     the gains summed: what a ridge says best, so that all else can only do worse
    saturating   the sum through a curve: the same step is worth less to a large network than to a small one
    interacting  saturating; besides, pairs of random combinations of choices multiply
    """
    rng = np.random.default_rng(seed)
    features, gains = feature_map(space), _gains(space, rng)
    pairs = rng.normal(size=(4, 2, len(gains)))
    reference = features(sample(space, 4000, rng)).astype(np.float64)

    def standard(x: FloatArray, weights: FloatArray) -> FloatArray:
        known = reference @ weights
        out: FloatArray = (x @ weights - known.mean()) / known.std()
        return out

    def additive(genomes: Genomes) -> FloatArray:
        return _MIDDLE + _HALF_RANGE / 3.0 * standard(features(genomes).astype(np.float64), gains)

    def curve(sums: FloatArray) -> FloatArray:
        out: FloatArray = _MIDDLE + _HALF_RANGE * (1.0 - 2.0 * np.exp(-0.35 * (sums + 2.0)))
        return out

    def saturating(genomes: Genomes) -> FloatArray:
        return curve(standard(features(genomes).astype(np.float64), gains))

    def interacting(genomes: Genomes) -> FloatArray:
        x = features(genomes).astype(np.float64)
        products = sum(standard(x, left) * standard(x, right) for left, right in pairs)
        return curve(standard(x, gains) + 0.15 * np.asarray(products))

    return {"additive": additive, "saturating": saturating, "interacting": interacting}


def draw(name: str, top1: Top1, space: SearchSpace, num: int, noise: float, seed: int) -> Accuracies:
    """`num` distinct architectures and their accuracies; `noise` is the labels' standard deviation in [0, 1] units."""
    rng = np.random.default_rng([seed, num])
    genomes = unique(sample(space, num + num // 4, rng))[:num]
    truth = top1(genomes)
    labels = np.clip(truth + noise * rng.normal(size=len(truth)), 0.0, 1.0)
    return Accuracies(name, space, genomes, labels, truth)


def of_supernet(run: Path, num: int, seed: int, device: str = "cpu") -> Accuracies:
    """`num` random sub-networks of a run's supernet, evaluated on its holdout images. What was evaluated is kept in
    the run's `search/accuracy_predictor.jsonl`, so that a stopped script goes on; the search does not look at it.

    Raises:
        ChanasError: there is no supernet.
    """
    from chanas.core.progress import progress_bar
    from chanas.supernet.training.evaluate import SupernetEvaluator

    directory = RunDirectory(run)
    supernet = SupernetEvaluator.load(directory, device)
    space = supernet.space
    store = EvaluationStore(directory.search / EVALUATIONS, space, supernet.digest, supernet.top1)
    genomes = unique(sample(space, num + num // 4, np.random.default_rng(seed)))[:num]
    architectures = decode(space, genomes)
    with progress_bar(len(architectures), "evaluate", "net") as bar:
        for architecture in architectures:
            store.evaluate(architecture)
            bar.update()
    known, labels = training_set(space, [store.found[a.key] for a in architectures])
    return Accuracies("supernet", space, known, labels, labels)
