"""Supernet training: the loop around `step.py`, with checkpoints that an interrupted run continues from exactly."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from chanas.arch import Architecture, SearchSpace
from chanas.errors import ChanasError, CheckpointError, ConfigError
from chanas.network import StaticNetwork
from chanas.run import RunDirectory
from chanas.supernet import checkpoint as ckpt
from chanas.supernet.data import load_data
from chanas.supernet.evaluate import EvaluationImages, calibrated_subnet, load_weights, top1
from chanas.supernet.interrupts import DeferredSignals
from chanas.supernet.loader import Batch, training_batches
from chanas.supernet.metrics import append_metrics, cut_metrics
from chanas.supernet.network import Supernet
from chanas.supernet.phases import Schedule, StepPlan, TrainConfig
from chanas.supernet.resume import check_resumable, refuse_existing
from chanas.supernet.splits import save_splits
from chanas.supernet.step import NonFiniteError, Terms, accumulate_gradients, apply_gradients, make_optimizer
from chanas.supernet.threads import fastest_num_threads

MAX_ROLLBACKS = 3
ROLLBACK_LR_FACTOR = 0.5


@dataclass(frozen=True)
class TrainSummary:
    """What a call of `train_supernet` did. Accuracies are on holdout, in [0, 1]."""

    checkpoint: Path
    num_steps: int
    resumed_from: int
    """Steps that were done before this call."""
    wall_s: float
    images_per_s: float
    """Training images (train and gap) per second, each counted once per step however many sub-networks saw it."""
    top1_largest: float
    top1_smallest: float
    num_rollbacks: int


def train_supernet(
    run: RunDirectory,
    space: SearchSpace,
    config: TrainConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> TrainSummary:
    """Train the supernet of `space` and leave its checkpoint, splits and metrics in `run.supernet`.

    Resuming continues to the same bits as an uninterrupted run, on the same machine with the same number of threads.
    On Ctrl-C the state after the current step is checkpointed before KeyboardInterrupt is raised; SIGTERM does the same
    with a clean SystemExit.

    Args:
        run: where the files go.
        space: the search space.
        config: what to train.
        resume: continue from the checkpoint in `run`.
        overwrite: start anew although there is a checkpoint.
        progress: show a progress bar.

    Raises:
        ConfigError: a phase names a choice that the space lacks, the space is not for RGB images, or there is no GPU.
        DataError: the images cannot be used, or changed since the checkpoint was made.
        CheckpointError: there is a checkpoint and neither `resume` nor `overwrite` is set; or `resume` has nothing to
            resume, or the checkpoint is of another space or config.
        ChanasError: the loss stays non-finite after three rollbacks, or the checkpoint cannot be written.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda is not there (torch finds no GPU); set device: cpu")
    if space.in_channels != 3:
        raise ConfigError(f"space '{space.name}' has in_channels {space.in_channels}; images are RGB, so it must be 3")
    for phase in config.phases:
        phase.restrict(space)  # refuses choices that the space lacks before any image is read
    if not resume and not overwrite:
        refuse_existing(run)
    trainer = Trainer(run, space, config, resume)
    return trainer.train(progress)


class Trainer:
    """The state of a run: weights, optimiser, teacher, step; and the loop over it."""

    def __init__(self, run: RunDirectory, space: SearchSpace, config: TrainConfig, resume: bool) -> None:
        self.run, self.space, self.config = run, space, config
        if resume:
            check_resumable(run, space, config)
        self.data = load_data(config.data, config.seed, ckpt.splits_path(run) if resume else None)
        num_train = len(self.data.indices("train"))
        if config.objective.add_gap_to_train:
            num_train += len(self.data.indices("gap"))
        self.schedule = Schedule(config, space, num_train)
        self.device = torch.device(config.device)
        self.images = EvaluationImages(self.data, self.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.network = Supernet(space, self.data.num_classes).to(self.device)
        self.optimizer = make_optimizer(self.network, config.optimizer)
        self.teacher: StaticNetwork | None = None
        self.step, self.lr_scale, self.num_rollbacks = 0, 1.0, 0
        self.num_threads = config.num_threads or fastest_num_threads(self._rehearse, torch.get_num_threads())
        if resume:
            self._restore()
            cut_metrics(run, self.step)
        else:
            for path in (ckpt.checkpoint_path(run), ckpt.metrics_path(run)):
                path.unlink(missing_ok=True)
            save_splits(ckpt.splits_path(run), self.data.splits)
            self._save(done=False)

    def _rehearse(self) -> None:
        """A forward and a backward pass that leave nothing behind."""
        resolution = self.space.resolutions[-1]
        subnet = self.network.extract(self.space.largest).to(self.device).train()
        shape = (self.config.batch_size, self.space.in_channels, resolution, resolution)
        subnet(torch.zeros(shape, device=self.device)).sum().backward()

    # ---- the loop -------------------------------------------------------------------------------------------------
    def train(self, progress: bool) -> TrainSummary:
        """From the current step to the end; see `train_supernet`."""
        start, began = self.step, time.perf_counter()
        bar = tqdm(total=self.schedule.num_steps, initial=start, desc="supernet", unit="step", disable=not progress)
        with bar, DeferredSignals() as signals:
            while self.step < self.schedule.num_steps:
                try:
                    self._train_on(bar, signals)
                except NonFiniteError as error:
                    self._roll_back(error, bar)
                if signals.received is not None:
                    self._save(done=False)
                    signals.raise_received()
            wall_s = time.perf_counter() - began
            accuracies = self._evaluate()
            append_metrics(self.run, {"kind": "evaluation", "step": self.step, "phase": "end", **accuracies})
            self._save(done=True)
            signals.raise_received()
        images = self.config.batch_size + self.config.loader.gap_batch_size
        return TrainSummary(
            checkpoint=ckpt.checkpoint_path(self.run),
            num_steps=self.schedule.num_steps,
            resumed_from=start,
            wall_s=wall_s,
            images_per_s=(self.step - start) * images / wall_s,
            top1_largest=accuracies["top1_largest"],
            top1_smallest=accuracies["top1_smallest"],
            num_rollbacks=self.num_rollbacks,
        )

    def _train_on(self, bar: tqdm[Any], signals: DeferredSignals) -> None:
        """Steps until the end, a signal, or a loss that is not finite (NonFiniteError)."""
        for plan, batch in self._planned_batches():
            began = time.perf_counter()
            if plan.is_phase_start:
                self._enter_phase(plan)
            losses = self._update(plan, batch)
            self.step += 1
            images_per_s = len(batch.labels) / (time.perf_counter() - began)
            self._log(plan, losses, images_per_s, bar)
            last = self.step == self.schedule.num_steps
            if self.step % self.config.evaluate_every == 0 and not last:
                row = {"kind": "evaluation", "step": self.step, "phase": plan.phase_name}
                append_metrics(self.run, {**row, **self._evaluate()})
            if self.step % self.config.checkpoint_every == 0 and not last:
                self._save(done=False)
            if signals.received is not None:
                return

    def _planned_batches(self) -> Iterator[tuple[StepPlan, Batch]]:
        wanted = ((plan.step, plan.resolution) for plan in self.schedule.plans(self.step))
        batches = training_batches(self.data, self.config.loader, wanted)
        return zip(self.schedule.plans(self.step), batches, strict=True)

    def _enter_phase(self, plan: StepPlan) -> None:
        """Fresh momentum, channels in order of importance before they are shrunk, and the teacher after phase 0."""
        self.optimizer.state.clear()
        if plan.sorts_channels:
            self.network.sort_channels()
        if plan.phase == 1 and self.config.strategy == "progressive":
            self.teacher = self._subnet(self.schedule.spaces[0].largest)

    def _update(self, plan: StepPlan, batch: Batch) -> dict[str, Terms]:
        self.network.train()
        self.optimizer.zero_grad(set_to_none=True)
        batch = dataclasses.replace(
            batch, images_nchw=batch.images_nchw.to(self.device), labels=batch.labels.to(self.device)
        )
        in_place = self.config.strategy == "sandwich"
        losses = accumulate_gradients(self.network, batch, plan, self.teacher, in_place, self.config.objective)
        apply_gradients(self.network, self.optimizer, plan.lr * self.lr_scale, self.config.optimizer.clip_norm)
        return losses

    def _roll_back(self, error: NonFiniteError, bar: tqdm[Any]) -> None:
        if self.num_rollbacks == MAX_ROLLBACKS:
            raise ChanasError(
                f"training stays non-finite after {MAX_ROLLBACKS} rollbacks ({error}); the checkpoint of the last good "
                "step is whole; lower base_lr or set optimizer.clip_norm"
            )
        rollbacks, lr_scale = self.num_rollbacks + 1, self.lr_scale * ROLLBACK_LR_FACTOR
        self._restore()
        self.num_rollbacks, self.lr_scale = rollbacks, lr_scale
        cut_metrics(self.run, self.step)
        bar.reset(self.schedule.num_steps)
        bar.update(self.step)
        said = f"{error}: back to step {self.step} with {lr_scale:g} of the learning rate (rollback {rollbacks})"
        bar.write(said, file=sys.stderr)

    # ---- accuracy and metrics -------------------------------------------------------------------------------------
    def _subnet(self, architecture: Architecture) -> StaticNetwork:
        """A frozen copy in eval mode with BN statistics of its own."""
        network = calibrated_subnet(self.network, architecture, self.images, self.config.recalibration_images)
        return network.requires_grad_(False)

    def _evaluate(self) -> dict[str, float]:
        """Holdout accuracy of the largest and the smallest sub-network of the space."""
        out = {}
        for name, architecture in (("largest", self.space.largest), ("smallest", self.space.smallest)):
            out[f"top1_{name}"] = top1(
                self._subnet(architecture), architecture.resolution, self.images, "holdout", None
            )
        return out

    def _log(self, plan: StepPlan, losses: dict[str, Terms], images_per_s: float, bar: tqdm[Any]) -> None:
        mean = losses["all"]
        shown = {name: f"{v:.3f}" for name in ("train_loss", "generalization_gap") if (v := mean[name]) is not None}
        bar.set_postfix({"phase": plan.phase_name, **shown, "images/s": f"{images_per_s:.0f}"}, refresh=False)
        bar.update()
        if self.step % self.config.log_every == 0 or self.step == self.schedule.num_steps:
            row = {"kind": "training", "step": self.step, "phase": plan.phase_name, "lr": plan.lr * self.lr_scale}
            by_size = {name: terms for name, terms in losses.items() if name != "all"}
            append_metrics(self.run, {**row, **mean, "images_per_s": round(images_per_s, 1), "by_size": by_size})

    # ---- checkpoints ----------------------------------------------------------------------------------------------
    def _save(self, done: bool) -> None:
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.network.named_parameters()}
        tensors: dict[str, Tensor] = {f"supernet.{k}": v for k, v in self.network.state_dict().items()}
        for parameter, state in self.optimizer.state.items():
            if (momentum := state.get("momentum_buffer")) is not None:
                tensors[f"momentum.{names[parameter]}"] = momentum
        if self.teacher is not None:
            tensors |= {f"teacher.{k}": v for k, v in self.teacher.state_dict().items()}
        header = {
            "space": self.space.to_json(),
            "space_digest": self.space.digest,
            "config": self.config.to_json(),
            "class_names": list(self.data.class_names),
            "num_classes": self.data.num_classes,
            "preprocess": self.data.preprocess(self.space.resolutions[-1]).to_json(),
            "splits_digest": self.data.splits.digest,
            "seed": self.config.seed,
            "num_threads": self.num_threads,
            "step": self.step,
            "num_steps": self.schedule.num_steps,
            "done": done,
            "lr_scale": self.lr_scale,
            "num_rollbacks": self.num_rollbacks,
            "versions": ckpt.versions(),
        }
        ckpt.write_checkpoint(self.run, header, tensors)

    def _restore(self) -> None:
        """The state of the checkpoint on disk."""
        saved = ckpt.read_checkpoint(self.run)
        if saved.header["splits_digest"] != self.data.splits.digest:
            raise CheckpointError(
                f"{ckpt.splits_path(self.run)} is not the one of the checkpoint beside it; restore it, "
                "or train anew with --overwrite"
            )
        load_weights(self.network, saved.part("supernet"))
        self.optimizer.state.clear()
        momentum = saved.part("momentum")
        for name, parameter in self.network.named_parameters():
            if name in momentum:
                self.optimizer.state[parameter]["momentum_buffer"] = momentum[name].to(self.device)
        self.teacher = None
        if teacher := saved.part("teacher"):
            self.teacher = self.network.extract(self.schedule.spaces[0].largest).requires_grad_(False).eval()
            self.teacher.load_state_dict(teacher)
        self.step = int(saved.header["step"])
        if "num_threads" in saved.header:  # sums in the same order, and so the same bits
            self.num_threads = int(saved.header["num_threads"])
            torch.set_num_threads(self.num_threads)
        self.lr_scale, self.num_rollbacks = float(saved.header["lr_scale"]), int(saved.header["num_rollbacks"])
