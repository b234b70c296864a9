"""Cost models that are taught by a data set: training, further training on another device, scores, and their files.

A file is one of safetensors: arrays, and JSON in its header that says what they are (docs/formats.md).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from chanas.core.arrays import Array, Float32Array, FloatArray, IntArray
from chanas.errors import CheckpointError, ConfigError, one_line, unknown_name
from chanas.files.writing import replacing
from chanas.prescheduler.tuning.offline.boosters import PACKAGES, BoosterLearner
from chanas.prescheduler.tuning.offline.dataset import Dataset
from chanas.prescheduler.tuning.offline.primitives import NUM_VALUES, SLOTS, WIDTH, Rows, flatten

SCHEMA = 1
MODELS = ("attention", "mlp", *PACKAGES)
LOSSES = ("rmse", "lambdarank")
_FEATURES = "primitives"
"""Features that every model reads, as its file names them."""


Arrays = Mapping[str, Array]


class Learner(Protocol):
    """A way to learn the order of records from normalised rows (`boosters`, `networks`)."""

    def fit(self, data: Dataset, seed: int, start: Arrays | None, progress: bool) -> Arrays:
        """Learn from records whose rows are normalised, or go on from what `start` has; returns arrays by name."""

    def load(self, arrays: Arrays) -> Callable[[Rows], FloatArray]:
        """Scores float64[N] of rows by what was learned: higher is faster."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Names of a model: one of `MODELS`, and what it was taught by (`LOSSES`).

    Raises:
        ConfigError: a name is unknown, or trees are to learn from pairs.
    """

    model: str = "attention"
    loss: str = "rmse"

    def __post_init__(self) -> None:
        for what, name, known in (("cost model", self.model, MODELS), ("loss", self.loss, LOSSES)):
            if name not in known:
                raise ConfigError(unknown_name(what, name, known))
        if self.is_booster and self.loss != "rmse":
            raise ConfigError(f"cost model '{self.model}' learns with --loss rmse alone, got {self.loss}")

    @property
    def is_booster(self) -> bool:
        """True if it has trees, which read a sequence as one row; networks read primitives one after the other."""
        return self.model in PACKAGES

    @property
    def learner(self) -> Learner:
        """
        Raises:
            ConfigError: the library is not installed.
        """
        if self.is_booster:
            return BoosterLearner(self.model)
        from chanas.prescheduler.tuning.offline.networks import NetworkLearner

        return NetworkLearner(self.model, self.loss)

    @property
    def width(self) -> int:
        """Numbers of a row that the model reads."""
        return len(SLOTS) * (1 + NUM_VALUES) if self.is_booster else WIDTH


@dataclass(frozen=True, eq=False)
class OfflineModel:
    """A model that was taught.

    mean, deviation  float32[F]: of the columns that it learned from; of primitives that are read as a sequence
                     float32[len(SLOTS), NUM_VALUES], each primitive's numbers by themselves
    arrays           weights of a network by name, or the text form of trees as bytes
    slope            log seconds that a score of one less stands for, among records of one task
    facts            what it learned from: devices, numbers, seed, versions
    """

    kind: Kind
    mean: Float32Array
    deviation: Float32Array
    arrays: Arrays
    slope: float = 1.0
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def scores(self, rows: Rows) -> FloatArray:
        """float64[N]: higher is faster; after `rmse` these stand for labels."""
        return self._score(self._prepare(rows))

    def log_seconds(self, rows: Rows) -> FloatArray:
        """float64[N]: log seconds up to a constant for each task."""
        return -self.slope * self.scores(rows)

    def _prepare(self, rows: Rows) -> Rows:
        if not self.kind.is_booster:
            slots = rows.values[:, : len(SLOTS)]
            which = slots.argmax(axis=1)
            values = (rows.values[:, len(SLOTS) :] - self.mean[which]) / self.deviation[which]
            return Rows(np.hstack([slots, values]), rows.offsets)
        return Rows((flatten(rows) - self.mean) / self.deviation, np.arange(len(rows) + 1, dtype=np.int64))

    @cached_property
    def _score(self) -> Callable[[Rows], FloatArray]:
        return self.kind.learner.load(self.arrays)


def train(data: Dataset, chosen: IntArray, kind: Kind, seed: int = 0, progress: bool = True) -> OfflineModel:
    """A model that learns from some records of a data set.

    Raises:
        ConfigError: the library is not installed.
    """
    part = data.of(chosen)
    return _learn(OfflineModel(kind, *_scales(part, kind), {}), part, seed, progress)


def train_further(model: OfflineModel, data: Dataset, chosen: IntArray, seed: int = 0) -> OfflineModel:
    """The model after a few records of another device: networks learn slowly, trees get further ones.

    Raises:
        ConfigError: as `train`.
    """
    return _learn(model, data.of(chosen), seed, progress=False)


def _scales(part: Dataset, kind: Kind) -> tuple[Float32Array, Float32Array]:
    """Mean and deviation of each number that is read; 1 where it is always the same."""
    if kind.is_booster:
        groups = [flatten(part.primitives)]
    else:
        values = part.primitives.values
        which = values[:, : len(SLOTS)].argmax(axis=1)
        groups = [values[which == slot, len(SLOTS) :] for slot in range(len(SLOTS))]
    zeros = np.zeros((1, groups[0].shape[1]), dtype=np.float32)
    groups = [group if len(group) else zeros for group in groups]
    mean = np.array([group.mean(axis=0) for group in groups], dtype=np.float32)
    deviation = np.array([group.std(axis=0) for group in groups], dtype=np.float32)
    deviation = np.where(deviation > 1e-6, deviation, np.float32(1.0))
    return (mean[0], deviation[0]) if kind.is_booster else (mean, deviation)


def _learn(model: OfflineModel, part: Dataset, seed: int, progress: bool) -> OfflineModel:
    start = model.arrays or None
    normalised = dataclasses.replace(part, primitives=model._prepare(part.primitives))
    arrays = model.kind.learner.fit(normalised, seed, start, progress)
    facts = {
        "devices": sorted({part.devices[part.tasks[t].device].device for t in np.unique(part.task)}),
        "num_records": len(part),
        "num_tasks": len(np.unique(part.task)),
        "seed": seed,
    }
    if start is not None:
        facts["started_from"] = dict(model.facts)
    taught = OfflineModel(model.kind, model.mean, model.deviation, arrays, facts=facts)
    return dataclasses.replace(taught, slope=_slope(taught.scores(part.primitives), part))


def _slope(score: FloatArray, part: Dataset) -> float:
    """The regression of log seconds on −score, both without their means over a task; zero if they disagree."""
    log_s = np.log(part.latency_s)
    counts = np.maximum(part.counts(), 1)
    x, y = (v - (np.bincount(part.task, v, len(counts)) / counts)[part.task] for v in (-score, log_s))
    return max(0.0, float(x @ y) / max(float(x @ x), 1e-12))


# ---- files -----------------------------------------------------------------------------------------------------------
def save_model(model: OfflineModel, path: Path) -> None:
    """Write a file whole.

    Raises:
        ChanasError: it cannot be written.
    """
    from safetensors.numpy import save_file

    header = {
        "schema": SCHEMA,
        "width": model.kind.width,
        "features": _FEATURES,
        **dataclasses.asdict(model.kind),
        "slope": model.slope,
        "facts": model.facts,
    }
    arrays = {"mean": model.mean, "deviation": model.deviation}
    arrays |= {f"body.{name}": np.ascontiguousarray(array) for name, array in model.arrays.items()}
    with replacing(path) as temporary:
        save_file(arrays, temporary, metadata={"chanas": json.dumps(header, sort_keys=True)})


def load_model(path: Path) -> OfflineModel:
    """Read a file.

    Raises:
        CheckpointError: there is none, it is no cost model, is damaged, or reads other features than today's.
        ConfigError: the library of its trees is not installed.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"there is no cost model {path}; `chanas records train` writes one")
    try:
        with safe_open(path, "numpy") as file:
            header = json.loads((file.metadata() or {})["chanas"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
        if header["features"] != _FEATURES:
            raise CheckpointError(f"{path} reads {header['features']}, which no model does now; train it again")
        kind = Kind(model=header["model"], loss=header["loss"])
        if (header["schema"], header["width"]) != (SCHEMA, kind.width):
            raise CheckpointError(
                f"expected a cost model of schema {SCHEMA} that reads {kind.width} numbers, got schema "
                f"{header['schema']} and {header['width']} in {path}; train it again"
            )
        body = {name.removeprefix("body."): array for name, array in arrays.items() if name.startswith("body.")}
        model = OfflineModel(kind, arrays["mean"], arrays["deviation"], body, float(header["slope"]), header["facts"])
        assert model._score is not None
        return model
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise CheckpointError(f"{path} is no cost model, or is damaged ({one_line(error, 120)})") from error
