"""The accuracy predictor: top-1 of an architecture from its genome (paper, section 3.6), with its own uncertainty.

Five kinds behind one class. `pairs`, the default, knows how blocks make up stages and the network, and needs the fewest
evaluations. `mlp` blends an ensemble of perceptrons with a ridge fit by what they prove
to be worth on rows that they have not seen: with few evaluations it is the ridge, with many it learns what a sum over
blocks cannot say. `mlp-plain` is the perceptrons by themselves, as in the paper; `ridge` and `gp` are yardsticks.

Notation: N architectures, F features, M members, H hidden sizes. Shape suffixes: _mnh is [M, N, H].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from chanas.core.arch import SearchSpace
from chanas.core.genome import FloatArray, Genomes
from chanas.errors import CheckpointError, ConfigError, unknown_name
from chanas.files.documents import Document
from chanas.files.writing import file_digest, replacing, write_json
from chanas.search.accuracy.encoding import Features, feature_groups, feature_map
from chanas.search.accuracy.ensemble import Blend, Ensemble, worth
from chanas.search.accuracy.pairs import PairProcess, fit_pairs
from chanas.search.accuracy.regression import GaussianProcess, Ridge, constant, fit_gp, fit_ridge

Kind = Literal["mlp", "mlp-plain", "pairs", "ridge", "gp"]
SCHEMA = 2
MIN_TRAINING = 8
DEFAULT_HIDDEN = (64, 64)
_STEPS, _LEARNING_RATE, _WEIGHT_DECAY = 250, 3e-3, 3e-2
# With fewer architectures the ridge speaks alone. Of 168 fits the only one that came out worse than its ridge,
# by 1.5 %, had learnt from 50, and none from fewer than 200 was better (benchmarks/accuracy_predictor.py).
_MIN_BLENDED = 100
_BETAS = (0.9, 0.999)
_BATCH = 512


class Model(Protocol):
    """A fitted regression on features."""

    def mean(self, x: Features) -> FloatArray: ...

    def spread(self, x: Features) -> FloatArray: ...


# ---- the perceptrons ------------------------------------------------------------------------------------------------
def _train_ensemble(
    x: Features, targets: npt.NDArray[np.float32], taught: npt.NDArray[np.bool_], hidden: Sequence[int], seed: int
) -> Ensemble:
    """M perceptrons at once (imports torch). `targets` float32[M, N] holds where `taught` bool[M, N].

    AdamW with a cosine rate (Loshchilov and Hutter, 2019), written out: making one of torch's optimisers imports its
    compiler, which takes longer than the whole training here.
    """
    import torch

    num_members, num_rows = targets.shape
    generator = torch.Generator().manual_seed(seed)
    sizes = [x.shape[1], *hidden, 1]
    params: list[torch.Tensor] = []
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        weight = torch.randn(num_members, fan_in, fan_out, generator=generator) * (2.0 / fan_in) ** 0.5
        if layer == len(sizes) - 2:
            weight = weight * 0.1  # starts near zero: the mean, until there is a reason for more
        params += [weight.requires_grad_(), torch.zeros(num_members, 1, fan_out).requires_grad_()]
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in params]
    x_nf, y_mn, taught_mn = torch.from_numpy(x), torch.from_numpy(targets), torch.from_numpy(taught).float()
    for step in range(_STEPS):
        if num_rows > _BATCH:
            rows = torch.randint(num_rows, (_BATCH,), generator=generator)
            x_step, y_step, taught_step = x_nf[rows], y_mn[:, rows], taught_mn[:, rows]
        else:
            x_step, y_step, taught_step = x_nf, y_mn, taught_mn
        out_mnh = x_step.expand(num_members, -1, -1)
        for layer in range(len(sizes) - 1):
            out_mnh = torch.baddbmm(params[2 * layer + 1], out_mnh, params[2 * layer])
            if layer < len(sizes) - 2:
                out_mnh = torch.relu(out_mnh)
        loss = (taught_step * (out_mnh[..., 0] - y_step) ** 2).sum() / taught_step.sum().clamp(min=1.0) * num_members
        gradients = torch.autograd.grad(loss, params)
        rate = 0.5 * _LEARNING_RATE * (1.0 + math.cos(math.pi * step / _STEPS))
        with torch.no_grad():
            for param, gradient, (first_moment, second_moment) in zip(params, gradients, moments, strict=True):
                first_moment.lerp_(gradient, 1.0 - _BETAS[0])
                second_moment.lerp_(gradient**2, 1.0 - _BETAS[1])
                size = (second_moment / (1.0 - _BETAS[1] ** (step + 1))).sqrt_().add_(1e-8)
                param.mul_(1.0 - rate * _WEIGHT_DECAY)
                param.addcdiv_(first_moment, size, value=-rate / (1.0 - _BETAS[0] ** (step + 1)))
    arrays = [p.detach().numpy() for p in params]
    first = np.ascontiguousarray(arrays[0].transpose(1, 0, 2).reshape(sizes[0], -1))
    return Ensemble(first, tuple(arrays[2::2]), (arrays[1].reshape(-1), *arrays[3::2]))


def _perceptrons(
    x: Features, y: FloatArray, fold: npt.NDArray[np.int64], hidden: Sequence[int], num_members: int, seed: int
) -> tuple[Ensemble, float, float, FloatArray]:
    """An ensemble of which member m was taught all but fold m; origin and unit of its outputs; and what each row's own
    member, which has not seen it, predicts, float64[N]."""
    offset, scale = float(y.mean()), float(y.std())
    targets = np.tile(((y - offset) / (scale or 1.0)).astype(np.float32), (num_members, 1))
    ensemble = _train_ensemble(x, targets, fold[None, :] != np.arange(num_members)[:, None], hidden, seed)
    left_out: FloatArray = offset + scale * ensemble(x)[fold, np.arange(len(y))].astype(np.float64)
    return ensemble, offset, scale, left_out


def _fit_mlp(
    x: Features, y: FloatArray, hidden: Sequence[int], num_members: int, seed: int
) -> tuple[Blend, FloatArray]:
    """Ridge and perceptrons, each taught without a fold, tell on that fold what the perceptrons are worth. Returns the
    model and its residuals on left-out rows, float64[N]."""
    fold = np.random.default_rng(seed).permutation(len(y)) % num_members
    linear, leverage = np.zeros(len(y)), np.zeros(len(y))
    for m in range(num_members):
        train = fold != m
        ridge_m, _ = fit_ridge(x[train], y[train])
        linear[~train], leverage[~train] = ridge_m.mean(x[~train]), ridge_m.leverage(x[~train])
    ridge, _ = fit_ridge(x, y)
    ensemble, offset, scale, left_out = _perceptrons(x, y, fold, hidden, num_members, seed)
    share = worth(y - linear, left_out - linear) if len(y) >= _MIN_BLENDED else 0.0
    left_over = y - linear - share * (left_out - linear)
    noise = float(np.sqrt(np.mean(left_over**2) / (1.0 + np.mean(leverage))))
    return Blend(ridge, ensemble, share, offset, scale, noise), left_over


def _fit_plain_mlp(
    x: Features, y: FloatArray, hidden: Sequence[int], num_members: int, seed: int
) -> tuple[Blend, FloatArray]:
    """The perceptrons alone, and their residuals on left-out rows, float64[N]."""
    fold = np.random.default_rng(seed).permutation(len(y)) % num_members
    ensemble, offset, scale, left_out = _perceptrons(x, y, fold, hidden, num_members, seed)
    noise = float(np.sqrt(np.mean((y - left_out) ** 2)))
    return Blend(constant(x, y), ensemble, 1.0, offset, scale, noise), y - left_out


def _fit_gp(x: Features, y: FloatArray, seed: int) -> tuple[GaussianProcess, FloatArray]:
    """GP and its leave-one-out residuals (closed form: dual coefficient over the diagonal of the inverse)."""
    model = fit_gp(x, y, seed)
    inverse_factor = np.linalg.inv(model.factor)
    left_out: FloatArray = model.dual / (inverse_factor**2).sum(axis=0) * model.scale
    return model, left_out


# ---- models as arrays -----------------------------------------------------------------------------------------------
_BLEND_SCALARS = ("share", "offset", "scale", "noise")


def _ridge_arrays(model: Ridge) -> dict[str, Any]:
    return {f"ridge.{name}": getattr(model, name) for name in Ridge.__dataclass_fields__}


def _ridge_from(arrays: dict[str, Any]) -> Ridge:
    named: dict[str, Any] = {name: arrays[f"ridge.{name}"] for name in ("weights", "centre", "covariance")}
    return Ridge(**named | {name: arrays[f"ridge.{name}"].item() for name in ("offset", "noise", "strength")})


def _mlp_arrays(model: Blend) -> dict[str, Any]:
    layers = {f"hidden.{i}": w for i, w in enumerate(model.ensemble.hidden)}
    biases = {f"bias.{i}": b for i, b in enumerate(model.ensemble.biases)}
    scalars = {name: getattr(model, name) for name in _BLEND_SCALARS}
    return {**_ridge_arrays(model.ridge), "first": model.ensemble.first, **layers, **biases, **scalars}


def _mlp_from(arrays: dict[str, Any]) -> Blend:
    def numbered(name: str) -> tuple[Any, ...]:
        return tuple(arrays[f"{name}.{i}"] for i in range(sum(key.startswith(f"{name}.") for key in arrays)))

    ensemble = Ensemble(arrays["first"], numbered("hidden"), numbered("bias"))
    scalars = {name: arrays[name].item() for name in _BLEND_SCALARS}
    return Blend(_ridge_from(arrays), ensemble, **scalars)


def _process_arrays(model: GaussianProcess | PairProcess) -> dict[str, Any]:
    return {name: getattr(model, name) for name in model.__dataclass_fields__}


def _gp_from(arrays: dict[str, Any]) -> GaussianProcess:
    named: dict[str, Any] = {name: arrays[name] for name in ("x", "dual", "factor", "kernel")}
    return GaussianProcess(**named | {name: arrays[name].item() for name in ("offset", "scale")})


def _pairs_from(arrays: dict[str, Any]) -> PairProcess:
    named: dict[str, Any] = {
        name: arrays[name] for name in ("centre", "weights", "products", "metric", "rows", "factor")
    }
    return PairProcess(**named | {name: arrays[name].item() for name in ("offset", "scale", "share", "noise")})


_CODECS: dict[str, tuple[Callable[..., dict[str, Any]], Callable[[dict[str, Any]], Model]]] = {
    "mlp": (_mlp_arrays, _mlp_from),
    "mlp-plain": (_mlp_arrays, _mlp_from),
    "pairs": (_process_arrays, _pairs_from),
    "ridge": (_ridge_arrays, _ridge_from),
    "gp": (_process_arrays, _gp_from),
}
KINDS: tuple[Kind, ...] = ("mlp", "mlp-plain", "pairs", "ridge", "gp")


# ---- the class ------------------------------------------------------------------------------------------------------
class AccuracyPredictor:
    """Top-1 in [0, 1] units from genomes. Predictions aren't clipped, so the best ones stay ordered near 1.

    Args:
        space: whose genomes are predicted.
        kind: `mlp`, `mlp-plain`, `pairs`, `ridge` or `gp`.
        hidden: hidden sizes of each perceptron (the paper's predictor; both kinds of `mlp`).
        num_members: perceptrons in the ensemble, and folds by which they are judged (both kinds of `mlp`).
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
        if kind not in _CODECS:
            raise ConfigError(unknown_name("accuracy predictor", kind, _CODECS))
        if not hidden or min(hidden) < 1 or not 2 <= num_members <= MIN_TRAINING:
            raise ConfigError(
                f"expected at least one hidden size above zero and 2 to {MIN_TRAINING} members, got hidden "
                f"{tuple(hidden)} and {num_members} members"
            )
        self.space, self.kind, self.hidden = space, kind, tuple(hidden)
        self.num_members, self.seed = num_members, seed
        self.num_training = 0
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
        if self.kind in ("mlp", "mlp-plain"):
            fit_perceptrons = _fit_mlp if self.kind == "mlp" else _fit_plain_mlp
            model, residuals = fit_perceptrons(x, y, self.hidden, self.num_members, self.seed)
        elif self.kind == "pairs":
            model, residuals = fit_pairs(x, y, feature_groups(self.space), self.seed)
        elif self.kind == "ridge":
            model, residuals = fit_ridge(x, y)
        else:
            model, residuals = _fit_gp(x, y, self.seed)
        self._model, self.num_training = model, len(y)
        self.error = float(np.sqrt(np.mean(residuals**2)))
        return self

    def _require_model(self) -> Model:
        if self._model is None:
            raise ConfigError("the accuracy predictor has not learnt yet: call fit(genomes, top1) first")
        return self._model

    def mean(self, genomes: Genomes) -> FloatArray:
        """float64[N] predicted top-1: the fast path of the evolution."""
        return self._require_model().mean(self._features(genomes))

    def predict(self, genomes: Genomes) -> tuple[FloatArray, FloatArray]:
        """(mean, spread), each float64[N] in [0, 1] units; spread is the standard deviation of the error.

        Raises:
            ConfigError: nothing was fitted.
        """
        model, x = self._require_model(), self._features(genomes)
        return model.mean_spread(x) if isinstance(model, Blend) else (model.mean(x), model.spread(x))

    def save(self, folder: Path) -> None:
        """`predictor.safetensors` and `predictor.json` in `folder`."""
        from safetensors.numpy import save_file

        arrays = {k: np.ascontiguousarray(v) for k, v in _CODECS[self.kind][0](self._require_model()).items()}
        with replacing(folder / "predictor.safetensors") as path:
            save_file(arrays, path)
        facts = {"kind": self.kind, "hidden": list(self.hidden), "num_members": self.num_members, "seed": self.seed}
        write_json(
            folder / "predictor.json",
            {
                **facts,
                "schema": SCHEMA,
                "space": self.space.name,
                "space_digest": self.space.digest,
                "num_training": self.num_training,
                "error": self.error,
                "weights": file_digest(folder / "predictor.safetensors"),
            },
        )

    @classmethod
    def load(cls, folder: Path, space: SearchSpace) -> AccuracyPredictor:
        """Inverse of `save`.

        Raises:
            CheckpointError: the files are missing, damaged, of two different predictors, or of another space.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        weights = folder / "predictor.safetensors"

        def make(facts: dict[str, Any]) -> AccuracyPredictor:
            if facts["space_digest"] != space.digest:
                raise CheckpointError(
                    f"expected an accuracy predictor of space '{space.name}' ({space.digest}), got one of "
                    f"'{facts['space']}' ({facts['space_digest']}); run `chanas search` to make it again"
                )
            if not weights.is_file() or file_digest(weights) != facts["weights"]:
                raise CheckpointError(f"{weights} is missing or not the one that predictor.json names; make it again")
            out = cls(space, facts["kind"], facts["hidden"], facts["num_members"], facts["seed"])
            out._model = _CODECS[out.kind][1](load_file(weights))
            out.num_training, out.error = facts["num_training"], facts["error"]
            return out

        try:
            return _FACTS.read_with(folder / "predictor.json", make)
        except SafetensorError as error:
            raise CheckpointError(f"{weights} is damaged ({error}); run `chanas search` to make it again") from error


@dataclass(frozen=True)
class _Facts:
    """Content of `predictor.json`."""

    schema: int
    kind: str
    hidden: list[int]
    num_members: int
    seed: int
    space: str
    space_digest: str
    num_training: int
    error: float | None
    weights: str


_FACTS = Document("accuracy predictor", _Facts, "run `chanas search` to make it again", SCHEMA)
