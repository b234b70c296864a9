"""The training config: phases, strategy, optimiser; and the schedule that says what happens at each step.

`progressive` is once-for-all's: phase by phase more choices become elastic, a few random sub-networks per step, and the
largest network as it stood after the first phase is the teacher. `sandwich` is BigNAS's (Yu et al., ECCV 2020): each
step takes the largest, the smallest and random sub-networks, and the others learn from the largest's logits.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from chanas.core import genome
from chanas.core.arch import Architecture, SearchSpace
from chanas.errors import ConfigError
from chanas.files.yaml_files import preset_or_file, read_mapping
from chanas.supernet.data.data_config import DataConfig, LoaderConfig, validated

GAP_WEIGHT = 0.45  # λ of the paper's section 3.4
_RESOLUTION_STREAM, _SUBNET_STREAM = 21, 22  # keep the random streams of one seed apart

IntChoices = Literal["all"] | tuple[int, ...] | None
FloatChoices = Literal["all"] | tuple[float, ...] | None
SizeClass = Literal["largest", "smallest", "random", "only"]
Precision = Literal["f32", "bf16", "f16"]


class PhaseConfig(BaseModel):
    """One phase. Each choice is a list, `all` of the space's values, or left out for the largest value alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    steps: int | None = Field(default=None, ge=1)
    epochs: float | None = Field(default=None, gt=0)
    min_steps: int | None = Field(default=None, ge=1)
    """With `epochs`: at least so many steps, however few images an epoch has."""
    base_lr: float = Field(gt=0)
    """Peak learning rate for a batch of `optimizer.lr_batch_size` images; cosine to zero over the phase."""
    warmup_steps: int = Field(default=0, ge=0)
    warmup_epochs: float = Field(default=0, ge=0)
    num_subnets: int = Field(default=1, ge=1)
    """Sub-networks per step; the sandwich rule counts its largest and smallest among them."""
    kernel_sizes: IntChoices = None
    expand_ratios: IntChoices = None
    depths: IntChoices = None
    width_multipliers: FloatChoices = None
    resolutions: IntChoices = None

    @model_validator(mode="after")
    def _has_one_length(self) -> PhaseConfig:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"phase '{self.name}' needs either steps or epochs")
        if self.min_steps is not None and self.epochs is None:
            raise ValueError(f"phase '{self.name}' has min_steps, which goes with epochs")
        return self

    def restrict(self, space: SearchSpace) -> SearchSpace:
        """The part of `space` that this phase trains.

        Raises:
            ConfigError: a choice is not in the space.
        """
        kept: dict[str, Any] = {}
        for field in ("kernel_sizes", "expand_ratios", "depths", "width_multipliers", "resolutions"):
            chosen, known = getattr(self, field), getattr(space, field)
            values = known[-1:] if chosen is None else known if chosen == "all" else tuple(sorted(set(chosen)))
            if not values or (strange := sorted(set(values) - set(known))):
                got = list(values) if not values else strange
                raise ConfigError(
                    f"phase '{self.name}' names {field} {got}, which space '{space.name}' lacks; "
                    f"choose from {list(known)}"
                )
            kept[field] = values
        return dataclasses.replace(space, name=f"{space.name}:{self.name}", **kept)


class ObjectiveConfig(BaseModel):
    """The weights of the terms."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gap_weight: float = Field(default=GAP_WEIGHT, ge=0.0)
    """λ; at 0 the gap images are not used at all, and training is plain training."""
    gap_form: Literal["absolute", "hinge"] = "absolute"
    """`absolute` is equation 3. `hinge` is λ · max(0, L_val − L_train): where a step's gap images happen to have the
    smaller loss, equation 3 makes that loss larger, and the hinge leaves it alone."""
    distillation_weight: float = Field(default=1.0, ge=0.0)
    """κ; applies to sub-networks that have a teacher."""
    label_smoothing: float = Field(default=0.1, ge=0.0, lt=1.0)
    add_gap_to_train: bool = False
    """Train on the gap split as well: the fair opponent of the gap term, so only for gap_weight 0."""

    @model_validator(mode="after")
    def _gap_is_used_once(self) -> ObjectiveConfig:
        if self.add_gap_to_train and self.gap_weight > 0:
            raise ValueError(
                f"add_gap_to_train needs gap_weight 0, got {self.gap_weight:g}: "
                "images that are trained on cannot measure generalisation"
            )
        return self


class OptimizerConfig(BaseModel):
    """SGD with Nesterov momentum; weight decay spares BN and biases."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    momentum: float = Field(default=0.9, gt=0, lt=1)
    weight_decay: float = Field(default=3e-5, ge=0)
    lr_batch_size: int = Field(default=64, ge=1)
    """The batch size that `base_lr` is meant for; learning rates scale with the batch (Goyal et al., 2017)."""
    clip_norm: float | None = Field(default=None, gt=0)
    """Largest norm of a step's whole gradient."""


class TrainConfig(BaseModel):
    """Everything that decides what a training run computes, apart from the search space."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    space: str = "mbv3-32"
    """The preset space that the config is made for; used when the caller names none."""
    data: DataConfig = DataConfig()
    strategy: Literal["progressive", "sandwich"] = "sandwich"
    phases: tuple[PhaseConfig, ...] = Field(min_length=1)
    batch_size: int = Field(default=64, ge=2)
    """Train images of a step, over all processes together."""
    gap_batch_size: int = Field(default=32, ge=1)
    """Gap images of a step, likewise."""
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    seed: int = Field(default=0, ge=0)
    recalibration_images: int = Field(default=2000, ge=2)
    """Training images for the BN statistics of an evaluated sub-network (once-for-all: 2,000)."""
    checkpoint_every: int = Field(default=500, ge=1)
    """Steps between checkpoints."""
    checkpoint_minutes: float | None = Field(default=None, gt=0)
    """Minutes after which there is a checkpoint anyway."""
    keep_checkpoints: int = Field(default=3, ge=1)
    """The last ones that are kept beside the newest."""
    evaluate_every: int = Field(default=500, ge=1)
    log_every: int = Field(default=10, ge=1)
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Precision = "f32"
    """Precision of forward and backward passes (mixed precision: weights and sums stay f32); f16 scales the loss."""
    channels_last: bool = True
    num_micro_batches: int = Field(default=1, ge=1)
    """Parts that a process's images are computed in, one after another, to need less memory (gradient accumulation)."""
    activation_checkpointing: bool = False
    """Keep activations at block ends alone and compute the others twice: less memory, more time."""
    compile: bool = False
    """Run what recurs at every step (the largest, the smallest, the teacher) through torch.compile."""
    sync_batch_norm: bool = True
    """BN statistics over the images of all processes."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Evaluate and hand on an exponential moving average of the weights."""
    num_threads: int | None = Field(default=None, ge=1)
    """Threads of PyTorch; by default one or all, whichever is faster when training starts (resuming keeps it)."""

    def check_batch(self, world_size: int) -> None:
        """Check that a step's images can be shared by the processes and their micro-batches.

        Raises:
            ConfigError: they can't, or a part would be too small for BN.
        """
        parts = world_size * self.num_micro_batches
        where = f"{world_size} process(es) x {self.num_micro_batches} micro-batch(es)"
        loader = self.loader
        for name, size in (("batch_size", self.batch_size), ("gap_batch_size", loader.gap_batch_size)):
            if size % parts:
                raise ConfigError(f"{name} {size} cannot be shared equally by {where}; make it a multiple of {parts}")
        if self.batch_size // parts < 2:
            raise ConfigError(
                f"batch_size {self.batch_size} leaves 1 image to each of {where}, and BN needs at least 2; enlarge it"
            )

    @property
    def loader(self) -> LoaderConfig:
        gap = self.gap_batch_size if self.objective.gap_weight > 0 else 0
        return LoaderConfig(self.batch_size, gap, self.seed, self.objective.add_gap_to_train)

    @classmethod
    def from_json(cls, data: Any, where: str = "training config") -> TrainConfig:
        """Raises ConfigError, naming the first key that is unknown, missing or has a value that is not allowed."""
        return validated(cls, data, where)

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def changed(self, *, data: dict[str, Any] | None = None, **changes: Any) -> TrainConfig:
        """A copy with other values for top-level keys and for keys of `data`, checked like a file.

        Raises:
            ConfigError: a key is unknown or a value is not allowed.
        """
        stored = self.to_json()
        return self.from_json({**stored, **changes, "data": {**stored["data"], **(data or {})}})

    @classmethod
    def load(cls, name_or_path: str | Path) -> TrainConfig:
        """A preset of `configs/training` by name, or a YAML file by path.

        Raises:
            ConfigError: there is no such preset or file, or it is not a training config.
        """
        source = preset_or_file(name_or_path, "training", "training config", ConfigError)
        data = read_mapping(source, name_or_path, "training config", f"{cls.__name__} fields", ConfigError)
        return cls.from_json(data, str(name_or_path))


@dataclass(frozen=True)
class StepPlan:
    """The plan of one step. The teacher of a sandwich step, its largest sub-network, comes first."""

    step: int
    phase: int
    phase_name: str
    is_phase_start: bool
    sorts_channels: bool
    lr: float
    resolution: int
    subnets: tuple[tuple[SizeClass, Architecture], ...]


class Schedule:
    """The plan of every step, each a pure function of (config, seed, step)."""

    def __init__(
        self, config: TrainConfig, space: SearchSpace, num_train: int, only: Architecture | None = None
    ) -> None:
        """`num_train` counts the images of an epoch; with `only`, every step trains that architecture alone.

        Raises:
            ConfigError: a phase names a choice that `space` lacks, or is all warmup.
        """
        self.config, self.only, self.num_train = config, only, num_train
        self.spaces = [phase.restrict(space) for phase in config.phases]
        self._steps_per_epoch = num_train / config.batch_size
        lengths = [p.steps or max(p.min_steps or 1, self._to_steps(p.epochs or 0)) for p in config.phases]
        self.starts = [0, *itertools.accumulate(lengths)]
        for phase, length in zip(config.phases, lengths, strict=True):
            if self._warmup(phase) >= length:
                raise ConfigError(f"phase '{phase.name}' has {length} steps, all of them warmup; give it more steps")

    @property
    def num_steps(self) -> int:
        return self.starts[-1]

    def plan(self, step: int) -> StepPlan:
        """The plan of `step`, counted from 0."""
        phase = next(i for i, end in enumerate(self.starts[1:]) if step < end)
        begin = self.starts[phase]
        ratios = [space.expand_ratios for space in self.spaces[: phase + 1]]
        choices = self.spaces[phase].resolutions if self.only is None else (self.only.resolution,)
        resolution = int(self._rng(_RESOLUTION_STREAM, step).choice(choices))
        return StepPlan(
            step=step,
            phase=phase,
            phase_name=self.config.phases[phase].name,
            is_phase_start=step == begin,
            # the expand ratios of a phase keep the leading channels, so those have to be the important ones by then
            sorts_channels=step == begin and phase > 0 and ratios[-1] != ratios[-2],
            lr=self._lr(phase, step - begin),
            resolution=resolution,
            subnets=self._subnets(phase, step, resolution),
        )

    def plans(self, start: int) -> Iterator[StepPlan]:
        return (self.plan(step) for step in range(start, self.num_steps))

    def _subnets(self, phase: int, step: int, resolution: int) -> tuple[tuple[SizeClass, Architecture], ...]:
        if self.only is not None:
            return (("only", self.only),)
        space = _at_resolution(self.spaces[phase], resolution)
        if space.largest == space.smallest:
            return (("largest", space.largest),)
        fixed: list[tuple[SizeClass, Architecture]] = []
        if self.config.strategy == "sandwich":
            fixed = [("largest", space.largest), ("smallest", space.smallest)]
        num_random = max(0, self.config.phases[phase].num_subnets - len(fixed))
        drawn = genome.decode(space, genome.sample(space, num_random, self._rng(_SUBNET_STREAM, step)))
        return (*fixed, *(("random", a) for a in drawn))

    def _lr(self, phase: int, step: int) -> float:
        """Linear warmup to the peak, then a cosine to zero at the end of the phase (`step` counts inside it)."""
        config, length = self.config.phases[phase], self.starts[phase + 1] - self.starts[phase]
        warmup = self._warmup(config)
        peak = config.base_lr * self.config.batch_size / self.config.optimizer.lr_batch_size
        if step < warmup:
            return peak * (step + 1) / warmup
        return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (length - warmup)))

    def _warmup(self, phase: PhaseConfig) -> int:
        return phase.warmup_steps + (self._to_steps(phase.warmup_epochs) if phase.warmup_epochs else 0)

    def _to_steps(self, epochs: float) -> int:
        return max(1, math.ceil(epochs * self._steps_per_epoch))

    def _rng(self, stream: int, step: int) -> np.random.Generator:
        return np.random.default_rng([self.config.seed, stream, step])


@functools.lru_cache(maxsize=64)
def _at_resolution(space: SearchSpace, resolution: int) -> SearchSpace:
    return dataclasses.replace(space, resolutions=(resolution,))
