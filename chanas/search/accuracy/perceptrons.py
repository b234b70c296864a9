"""The paper's accuracy predictor (section 3.6): an ensemble of perceptrons, trained by torch and asked by plain numpy.

Notation: M members, F features, N training rows, Q query rows, H₁, H₂, … hidden sizes. Shape suffixes: _mnh is
[M, N, H]. The members' first layers are side by side, [F, M·H₁], so a population passes all of them in one matrix
product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chanas.core.arrays import BoolArray, Float32Array, FloatArray
from chanas.search.accuracy.encoding import Features

_STEPS, _LEARNING_RATE, _WEIGHT_DECAY = 250, 3e-3, 3e-2
_BETAS = (0.9, 0.999)
_BATCH = 512


@dataclass(frozen=True)
class Ensemble:
    """M perceptrons with ReLU and one output each.

    first   float32[F, M·H₁]
    hidden  float32[M, Hᵢ, Hᵢ₊₁] for each further layer; the last has one column
    biases  float32[M·H₁], then float32[M, 1, Hᵢ₊₁] for each further layer
    """

    first: Float32Array
    hidden: tuple[Float32Array, ...]
    biases: tuple[Float32Array, ...]

    @property
    def num_members(self) -> int:
        return len(self.hidden[0])

    def __call__(self, x: Features) -> Float32Array:
        """float32[M, Q]: each member's output."""
        out = x @ self.first
        out += self.biases[0]
        np.maximum(out, 0.0, out=out)
        size = self.first.shape[1] // self.num_members
        by_member = out.reshape(len(x), self.num_members, size).transpose(1, 0, 2)
        for i, (weight, bias) in enumerate(zip(self.hidden, self.biases[1:], strict=True)):
            by_member = by_member @ weight
            by_member += bias
            if i + 1 < len(self.hidden):
                np.maximum(by_member, 0.0, out=by_member)
        return by_member[:, :, 0]


@dataclass(frozen=True)
class Perceptrons:
    """offset + scale · mean of an ensemble; `noise` is the standard deviation of its error on rows left out."""

    ensemble: Ensemble
    offset: float
    scale: float
    noise: float

    def members(self, x: Features) -> Float32Array:
        """float32[M, Q]: each member's prediction."""
        out: Float32Array = self.offset + self.scale * self.ensemble(x)
        return out

    def mean(self, x: Features) -> FloatArray:
        """float64[Q] predictions."""
        out: FloatArray = self.members(x).mean(axis=0, dtype=np.float64)
        return out

    def spread(self, x: Features) -> FloatArray:
        """float64[Q]: standard deviation of the error; disagreement of the members, and noise."""
        out: FloatArray = np.sqrt(self.noise**2 + self.members(x).var(axis=0, dtype=np.float64))
        return out


def fit_perceptrons(
    x: Features, y: FloatArray, hidden: Sequence[int], num_members: int, seed: int
) -> tuple[Perceptrons, FloatArray]:
    """Fit `num_members` perceptrons, member m to all but fold m of the rows; with the residuals float64[N] of each row
    by its own member, which has not seen it (imports torch)."""
    fold = np.random.default_rng(seed).permutation(len(y)) % num_members
    offset, scale = float(y.mean()), float(y.std())
    targets = np.tile(((y - offset) / (scale or 1.0)).astype(np.float32), (num_members, 1))
    ensemble = _train_ensemble(x, targets, fold[None, :] != np.arange(num_members)[:, None], hidden, seed)
    left_out: FloatArray = offset + scale * ensemble(x)[fold, np.arange(len(y))].astype(np.float64)
    residuals = y - left_out
    return Perceptrons(ensemble, offset, scale, float(np.sqrt(np.mean(residuals**2)))), residuals


def _train_ensemble(x: Features, targets: Float32Array, given: BoolArray, hidden: Sequence[int], seed: int) -> Ensemble:
    """M perceptrons at once (imports torch). `targets` float32[M, N] count where `given` bool[M, N].

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
    x_nf, y_mn, given_mn = torch.from_numpy(x), torch.from_numpy(targets), torch.from_numpy(given).float()
    for step in range(_STEPS):
        if num_rows > _BATCH:
            rows = torch.randint(num_rows, (_BATCH,), generator=generator)
            x_step, y_step, given_step = x_nf[rows], y_mn[:, rows], given_mn[:, rows]
        else:
            x_step, y_step, given_step = x_nf, y_mn, given_mn
        out_mnh = x_step.expand(num_members, -1, -1)
        for layer in range(len(sizes) - 1):
            out_mnh = torch.baddbmm(params[2 * layer + 1], out_mnh, params[2 * layer])
            if layer < len(sizes) - 2:
                out_mnh = torch.relu(out_mnh)
        loss = (given_step * (out_mnh[..., 0] - y_step) ** 2).sum() / given_step.sum().clamp(min=1.0) * num_members
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
