"""The state that a training run carries from step to step, and its form in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from chanas.core.arch import Architecture, SearchSpace
from chanas.network.static import StaticNetwork
from chanas.supernet.data.images import ImageData
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.training.checkpoint import Checkpoint, versions
from chanas.supernet.training.evaluate import load_weights
from chanas.supernet.training.phases import TrainConfig


def setup_header(space: SearchSpace, config: TrainConfig, data: ImageData) -> dict[str, Any]:
    """The part of a checkpoint's header that says what the weights are of and for."""
    return {
        "space": space.to_json(),
        "space_digest": space.digest,
        "config": config.to_json(),
        "class_names": list(data.class_names),
        "num_classes": data.num_classes,
        "preprocess": data.preprocess(space.resolutions[-1]).to_json(),
        "splits_digest": data.splits.digest,
        "seed": config.seed,
        "versions": versions(),
    }


@dataclass
class Progress:
    """The numbers of a run. All of them are in its checkpoint's header."""

    step: int = 0
    """Steps done."""
    lr_scale: float = 1.0
    """Share of the planned learning rate that rollbacks left."""
    num_rollbacks: int = 0
    num_rollbacks_when_good: int = 0
    """Rollbacks before the last evaluation that passed."""
    best_top1: dict[str, float] = field(default_factory=dict)
    """By phase, the best holdout accuracy in [0, 1] of its smallest sub-network."""
    num_averaged: int = 0
    """Steps in the moving average of the weights."""
    num_threads: int = 1
    evaluated_step: int = 0
    """The step of the last evaluation."""

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "best_top1": dict(self.best_top1)}

    @classmethod
    def from_json(cls, header: dict[str, Any]) -> Progress:
        """Read a checkpoint's header; values that an older one lacks start anew."""
        return cls(**{name: header[name] for name in cls.__dataclass_fields__ if name in header})


class TrainState:
    """Weights, their moving average, momentum, teacher and progress."""

    def __init__(
        self,
        network: Supernet,
        optimizer: torch.optim.SGD,
        ema_decay: float | None,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        self.network, self.optimizer, self.scaler = network, optimizer, scaler
        self.teacher: StaticNetwork | None = None
        self.progress = Progress()
        self._ema_decay = ema_decay
        self._average: AveragedModel | None = None
        self.restart_average()

    @property
    def judged(self) -> Supernet:
        """The weights that are evaluated and handed on: their moving average where there is one."""
        if self._average is None or self.progress.num_averaged == 0:
            return self.network
        return cast(Supernet, self._average.module)

    def restart_average(self) -> None:
        """Average from the present weights on."""
        self.progress.num_averaged = 0
        if self._ema_decay is not None:
            self._average = AveragedModel(self.network, multi_avg_fn=get_ema_multi_avg_fn(self._ema_decay))  # type: ignore[no-untyped-call]

    def average(self) -> None:
        """Take the present weights into the moving average."""
        if self._average is not None:
            self._average.update_parameters(self.network)
            self.progress.num_averaged += 1

    def tensors(self) -> dict[str, Tensor]:
        """`supernet.*`, `ema.*`, `momentum.*` by parameter name, `teacher.*`."""
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.network.named_parameters()}
        tensors: dict[str, Tensor] = {f"supernet.{k}": v for k, v in self.network.state_dict().items()}
        if self._average is not None and self.progress.num_averaged:
            tensors |= {f"ema.{k}": v for k, v in self.judged.state_dict().items()}
        for parameter, state in self.optimizer.state.items():
            if (momentum := state.get("momentum_buffer")) is not None:
                tensors[f"momentum.{names[parameter]}"] = momentum
        if self.teacher is not None:
            tensors |= {f"teacher.{k}": v for k, v in self.teacher.state_dict().items()}
        return tensors

    def header(self) -> dict[str, Any]:
        """The part of a checkpoint's header that is the run's state."""
        scaler = None if self.scaler is None else dict(self.scaler.state_dict())
        return {**self.progress.to_json(), "scaler": scaler}

    def load(self, saved: Checkpoint, taught: Architecture) -> None:
        """Take over a checkpoint; `taught` is the architecture of the teacher, if it has one.

        Raises:
            CheckpointError: names or shapes are not those of this space.
        """
        load_weights(self.network, saved.part("supernet"))
        self.optimizer.state.clear()
        momentum = saved.part("momentum")
        for name, parameter in self.network.named_parameters():
            if name in momentum:
                buffer = torch.empty_like(parameter, requires_grad=False)  # of the same layout, so that sums are alike
                self.optimizer.state[parameter]["momentum_buffer"] = buffer.copy_(momentum[name])
        self.teacher = None
        if teacher := saved.part("teacher"):
            self.teacher = self.network.extract(taught).requires_grad_(False).eval()
            self.teacher.load_state_dict(teacher)
        if self.scaler is not None and saved.header.get("scaler"):
            self.scaler.load_state_dict(saved.header["scaler"])
        self.restart_average()
        self.progress = Progress.from_json(saved.header)
        if self._average is not None and (average := saved.part("ema")):
            load_weights(cast(Supernet, self._average.module), average)
            self._average.n_averaged.fill_(self.progress.num_averaged)
