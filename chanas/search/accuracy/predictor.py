"""The accuracy predictor: top-1 of an architecture from its genome (paper, section 3.6), with its own uncertainty.

Three kinds behind one class. `pairs`, the default, knows how blocks make up stages and the network, and needs the
fewest evaluations. `mlp` is the paper's, an ensemble of perceptrons. `ridge` is linear in the choices, and the fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from chanas.core.arch import NUM_FIXED, SearchSpace
from chanas.core.arrays import FloatArray
from chanas.core.genome import GenomeLayout, Genomes
from chanas.errors import ConfigError, unknown_name
from chanas.search.accuracy.encoding import Features, feature_groups, feature_map
from chanas.search.accuracy.losses import DtypeLosses
from chanas.search.accuracy.pairs import fit_pairs
from chanas.search.accuracy.perceptrons import fit_perceptrons
from chanas.search.accuracy.regression import fit_ridge

Kind = Literal["pairs", "mlp", "ridge"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MIN_TRAINING = 8
DEFAULT_HIDDEN = (64, 64)


class Model(Protocol):
    """A fitted regression on features."""

    def mean(self, x: Features) -> FloatArray: ...

    def spread(self, x: Features) -> FloatArray: ...


def cut(predictions: FloatArray) -> FloatArray:
    """Accuracies in [0, 1]: what a regression says beyond them is cut off. Its order is lost there, so evolutions go by
    what it says, and results, pictures and messages by this."""
    out: FloatArray = np.clip(predictions, 0.0, 1.0)
    return out


class AccuracyPredictor:
    """Top-1 in [0, 1] units from genomes.

    `losses` is what blocks in other dtypes than float32 cost, where they may be in several.

    Args:
        space: whose genomes are predicted.
        kind: `pairs`, `mlp` or `ridge`.
        hidden: hidden sizes of each perceptron (`mlp`).
        num_members: perceptrons in the ensemble, and folds by which their error is known (`mlp`).
        seed: of folds and initial weights; equal seeds and data give equal predictors.

    Raises:
        ConfigError: the kind is unknown, or a size is out of range.
    """

    def __init__(
        self,
        space: SearchSpace,
        kind: str = "pairs",
        hidden: Sequence[int] = DEFAULT_HIDDEN,
        num_members: int = 5,
        seed: int = 0,
    ) -> None:
        if kind not in KINDS:
            raise ConfigError(unknown_name("accuracy predictor", kind, KINDS))
        if not hidden or min(hidden) < 1 or not 2 <= num_members <= MIN_TRAINING:
            raise ConfigError(
                f"expected at least one hidden size above zero and 2 to {MIN_TRAINING} members, got hidden "
                f"{tuple(hidden)} and {num_members} members"
            )
        self.space, self.kind, self.hidden = space, kind, tuple(hidden)
        self.num_members, self.seed = num_members, seed
        self.num_training = 0
        self.losses: DtypeLosses | None = None
        self.error = float("nan")
        self._features = feature_map(space)
        self._model: Model | None = None

    def fit(self, genomes: Genomes, top1: npt.ArrayLike) -> AccuracyPredictor:
        """Learns from canonical genomes int16[N, L] and their top-1 float[N] in [0, 1]; returns itself.

        Afterwards `error` is the root mean square of its residuals on rows left out (in [0, 1] units).

        Raises:
            ConfigError: there are fewer than MIN_TRAINING rows, or values outside [0, 1].
        """
        y = np.asarray(top1, dtype=np.float64)
        if len(y) != len(genomes) or len(y) < MIN_TRAINING:
            raise ConfigError(
                f"expected at least {MIN_TRAINING} evaluated architectures to learn accuracies from, got {len(y)} "
                f"for {len(genomes)} genomes; evaluate more"
            )
        if not (np.isfinite(y).all() and y.min() >= 0.0 and y.max() <= 1.0):
            raise ConfigError(f"expected top-1 between 0 and 1, got {y.min():g} to {y.max():g}; divide points by 100")
        x = self._features(genomes)
        model: Model
        if self.kind == "mlp":
            model, residuals = fit_perceptrons(x, y, self.hidden, self.num_members, self.seed)
        elif self.kind == "pairs":
            model, residuals = fit_pairs(x, y, feature_groups(self.space), self.seed)
        else:
            model, residuals = fit_ridge(x, y)
        self._model, self.num_training = model, len(y)
        self.error = float(np.sqrt(np.mean(residuals**2)))
        return self

    @property
    def losses_by_place(self) -> FloatArray:
        """float64[Q, P + 4]: what blocks in each dtype cost, in order; nothing as long as that is not known."""
        if self.losses is not None:
            return self.losses.by_place
        layout = GenomeLayout(self.space)
        return np.zeros((layout.num_dtypes, layout.num_slots + NUM_FIXED))

    def _require_model(self) -> Model:
        if self._model is None:
            raise ConfigError("the accuracy predictor has not learnt yet: call fit(genomes, top1) first")
        return self._model

    def mean(self, genomes: Genomes) -> FloatArray:
        """float64[N] predictions as the regression makes them, less what dtypes cost: the fast path of the evolution,
        in which those beyond 1 keep their order. `cut` makes accuracies of them."""
        found = self._require_model().mean(self._features(genomes))
        return found if self.losses is None else found - self.losses.of(genomes)

    def predict(self, genomes: Genomes) -> tuple[FloatArray, FloatArray]:
        """(mean, spread), each float64[N], the mean in [0, 1]; spread is the standard deviation of the error.

        Raises:
            ConfigError: nothing was fitted.
        """
        spread = self._require_model().spread(self._features(genomes))
        if self.losses is not None:
            spread = np.hypot(spread, self.losses.error)
        return cut(self.mean(genomes)), spread
