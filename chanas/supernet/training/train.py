"""Supernet training: the loop around `step.py`, with checkpoints that an interrupted run continues from exactly."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from chanas import interrupts
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.progress import ProgressBar, announce, progress_bar
from chanas.errors import ChanasError, CheckpointError, ConfigError, DataError
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.network.static import StaticNetwork, for_inference
from chanas.supernet.data.data_config import DataConfig
from chanas.supernet.data.images import ImageData, load_data
from chanas.supernet.data.loader import Batch, in_memory, training_batches
from chanas.supernet.data.places import placed, remember_place
from chanas.supernet.data.splits import save_splits
from chanas.supernet.elastic.distributed import World, joined
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.training import checkpoint as ckpt
from chanas.supernet.training.evaluate import EvaluationImages, calibrated_subnet, top1
from chanas.supernet.training.interrupts import DeferredSignals, Ended
from chanas.supernet.training.metrics import Log, read_metrics
from chanas.supernet.training.phases import Schedule, StepPlan, TrainConfig
from chanas.supernet.training.plan import TrainingPlan, estimate_s, rehearse
from chanas.supernet.training.resume import continues, resumable, stored_config
from chanas.supernet.training.state import TrainState, setup_header
from chanas.supernet.training.step import (
    Execution,
    NonFiniteError,
    Terms,
    accumulate_gradients,
    apply_gradients,
    make_optimizer,
)
from chanas.supernet.training.threads import fastest_num_threads

MAX_ROLLBACKS = 3
ROLLBACK_LR_FACTOR = 0.5
GIVE_UP_STEP_S = 1.0  # until a step is given up that a signal came in
CHANCE_DEVIATIONS = 2.0  # so many standard deviations above guessing, an accuracy cannot be told from guessing


class CollapseError(ArithmeticError):
    """The smallest sub-network had learned something, and guesses again."""


@dataclass(frozen=True)
class TrainSummary:
    """The result of a call of `train_supernet`."""

    checkpoint: Path
    num_steps: int
    resumed_from: int
    """Steps that were done before this call."""
    wall_s: float
    images_per_s: float
    """Training images (train and gap) per second, each counted once per step however many sub-networks saw it."""
    top1: dict[str, float]
    """Accuracy on holdout in [0, 1] of the `largest` and the `smallest` sub-network, or of the `only` one."""
    num_rollbacks: int
    is_main: bool
    """True for the process that speaks for all."""

    @property
    def top1_largest(self) -> float:
        return self.top1["largest"]

    @property
    def top1_smallest(self) -> float:
        return self.top1["smallest"]


@dataclass(frozen=True)
class Start:
    """The start of a training, where that is not a whole supernet with fresh weights and splits."""

    architecture: Architecture | None = None
    """The one that is trained alone."""
    inherited: StaticNetwork | Supernet | None = None
    """The weights, of that architecture or of a supernet; for other classes the last layer's are fresh."""
    splits: Path | None = None
    """The splits file of a supernet, so that no image changes sides."""


FRESH = Start()


def train_supernet(
    run: RunDirectory,
    space: SearchSpace,
    config: TrainConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    tensorboard: bool = False,
    progress: bool = True,
    start: Start = FRESH,
) -> TrainSummary:
    """Train the supernet of `space` and leave its checkpoint, splits and metrics in `run.supernet`.

    A checkpoint of the same settings is continued, to the same bits as an uninterrupted run on the same machine with
    the same number of threads. On Ctrl-C and SIGTERM the current step ends and is checkpointed before Interrupted (a
    KeyboardInterrupt) is raised. Under `torchrun` every process calls this alike, and `run` is on a disk that all see.

    Args:
        run: where the files go.
        space: the search space.
        config: what to train.
        resume: there has to be a checkpoint in `run` to continue.
        overwrite: start anew although there is a checkpoint.
        tensorboard: write the metrics as TensorBoard's event files too.
        progress: show a progress bar.
        start: one architecture of the space to train alone, weights to begin with; not looked at when resuming, but for
            the architecture.

    Raises:
        ConfigError: a phase names a choice that the space lacks, the space is not for RGB images, a step's images
            cannot be shared by the processes, or there is no GPU.
        DataError: the images cannot be used, or changed since the checkpoint was made.
        CheckpointError: there is a checkpoint of another space or config, and `overwrite` is not set; or `resume` has
            nothing to resume.
        RunBusyError: another process trains in `run`.
        ChanasError: the loss stays non-finite, or accuracy keeps collapsing, after three rollbacks; or the checkpoint
            cannot be written.
    """
    _check(space, config)
    with joined(config.device) as world:
        config.check_batch(world.size)
        with _only_writer(run, world):
            resume = not overwrite and continues(run, space, config, start.architecture, start.inherited, resume)
            trainer = Trainer(run, space, config, resume, world, tensorboard, start)
            progress = progress and world.is_main and not trainer.was_done
            if progress:
                announce(trainer.plan().lines())
            world.wait()  # before anything is written, every rank has seen that it may be
            return trainer.train(progress)


def plan_supernet(
    run: RunDirectory,
    space: SearchSpace,
    config: TrainConfig,
    *,
    resume: bool = False,
    overwrite: bool = False,
    start: Start = FRESH,
) -> TrainingPlan:
    """The plan of what `train_supernet` would do with the same arguments; nothing is written.

    Raises:
        ChanasError: as `train_supernet` says.
    """
    _check(space, config)
    config.check_batch(1)
    resume = not overwrite and continues(run, space, config, start.architecture, start.inherited, resume)
    return Trainer(run, space, config, resume, start=start).plan()


def _check(space: SearchSpace, config: TrainConfig) -> None:
    """Raise ConfigError where the space, the config and this machine don't go together, before any image is read."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda is not there (torch finds no GPU); set device: cpu")
    if space.in_channels != 3:
        raise ConfigError(f"space '{space.name}' has in_channels {space.in_channels}; images are RGB, so it must be 3")
    for phase in config.phases:
        phase.restrict(space)


@contextlib.contextmanager
def _only_writer(run: RunDirectory, world: World) -> Iterator[None]:
    """Rank 0 holds the lock of the run for all.

    Raises:
        RunBusyError: another training has it. The other ranks end without a word.
    """
    busy: ChanasError | None = None
    with contextlib.ExitStack() as stack:
        if world.is_main:
            try:
                stack.enter_context(one_writer(run.supernet))
            except ChanasError as error:
                busy = error
        if world.largest(int(busy is not None), world.device):
            raise busy or SystemExit(1)
        yield


def _patience(are_several: bool) -> contextlib.AbstractContextManager[None]:
    """Patience with several processes: their common work may take long to end, and a launcher repeats signals."""
    return interrupts.patience(deaf=True) if are_several else contextlib.nullcontext()


class Trainer:
    """A run, and the loop over its steps."""

    def __init__(
        self,
        run: RunDirectory,
        space: SearchSpace,
        config: TrainConfig,
        resume: bool,
        world: World = World(),  # noqa: B008 (frozen)
        tensorboard: bool = False,
        start: Start = FRESH,
    ) -> None:
        self.run, self.space, self.config, self.world = run, space, config, world
        self._began = time.perf_counter()
        self.only = only = start.architecture
        saved, images, stored_splits = None, config.data, start.splits
        self._inherited = ckpt.checksum_of(start.inherited)
        if resume:
            saved, path = resumable(run)
            self._inherited = saved.header.get("inherited")
            stored, stored_splits = stored_config(saved.header).data, ckpt.splits_path(run)
            if images.root == stored.root:
                images = placed(stored, stored_splits)
            self.config = config = config.model_copy(update={"data": stored})  # the place is not the checkpoint's
            if path != ckpt.checkpoint_path(run):
                self._say(f"{ckpt.checkpoint_path(run)} is damaged; going on from {path}")
        self.data = self._load_data(images, stored_splits)
        if config.data.in_memory:
            self.data = in_memory(self.data)
        num_train = len(self.data.indices("train"))
        if config.objective.add_gap_to_train:
            num_train += len(self.data.indices("gap"))
        if not num_train:
            raise DataError(f"data set {self.data.source.name} has no images to train on; name a folder of some")
        self.schedule = Schedule(config, space, num_train, only)
        self.device = torch.device(f"cuda:{world.local_rank}" if config.device == "cuda" else "cpu")
        self.images = EvaluationImages(self.data, self.device)
        self.network = self._new_network(start)
        self.execution = Execution.of(
            self.network, world, config.precision, config.num_micro_batches, config.channels_last
        )
        optimizer = make_optimizer(self.network, config.optimizer)
        self.state = TrainState(self.network, optimizer, config.ema_decay, self.execution.scaler)
        self.log = Log(run, tensorboard and world.is_main)
        self._settle_threads(None if saved is None else saved.header.get("num_threads"))
        self.was_done = saved is not None and bool(saved.header["done"])
        self._spent_s = 0.0  # before this process, repeated steps included
        self._is_fresh = saved is None and start.inherited is None
        self._is_whole = saved is not None and path == ckpt.checkpoint_path(run)
        if saved is not None:
            self._spent_s = max((float(row.get("wall_s", 0.0)) for row in read_metrics(run)), default=0.0)
            self._load(saved)
        self._resumes = saved is not None

    def _load_data(self, config: DataConfig, stored_splits: Path | None) -> ImageData:
        """The images; the main process reads those that are new first, so that the others find them known."""
        if not self.world.is_main:
            self.world.wait()
        try:
            return load_data(config, self.config.seed, stored_splits, progress=self.world.is_main)
        finally:
            if self.world.is_main:
                self.world.wait()

    def plan(self) -> TrainingPlan:
        """The plan of this training."""
        step = self.state.progress.step
        seconds = estimate_s(self.network, self.data, self.schedule, step, self.device)
        return TrainingPlan(
            self.space, self.data, self.schedule, step, seconds, torch.get_num_threads(), self._is_fresh
        )

    def _begin(self) -> None:
        """Leave a checkpoint to resume from, of a new run with its splits."""
        if self._resumes:
            self._cut_metrics()
            if self.world.is_main:
                remember_place(ckpt.splits_path(self.run), self.data.config, self.config.data)
            if not self._is_whole:
                self._save(done=False, good=True)  # the other files may share the damaged block
            return
        if self.world.is_main:
            ckpt.clear(self.run)
            ckpt.metrics_path(self.run).unlink(missing_ok=True)
            save_splits(ckpt.splits_path(self.run), self.data.splits)
        self._save(done=False, good=True)

    def _new_network(self, start: Start) -> Supernet:
        """The network as training begins with it."""
        config = self.config
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            network = Supernet(self.space, self.data.num_classes, self.only)
        if start.inherited is not None:
            try:
                network.inherit(start.inherited)
            except RuntimeError as error:
                raise CheckpointError(
                    f"the weights to begin with are not of space '{self.space.name}' "
                    f"({str(error).splitlines()[-1].strip()})"
                ) from error
        network.to(self.device)
        network.activation_checkpointing = config.activation_checkpointing
        if config.compile:
            network.compile_recurring()
        if config.sync_batch_norm:
            network.synchronise(self.world)
        return network

    def _settle_threads(self, stored: int | None) -> None:
        """Settle the number of threads: one process takes the stored one, the config's or the fastest; several take
        what `torchrun` gave them."""
        if self.world.size == 1:
            chosen = stored or self.config.num_threads
            if chosen is None:
                step, _ = rehearse(self.network, self.only or self.space.largest, self.device)
                chosen = fastest_num_threads(step, torch.get_num_threads())
            torch.set_num_threads(chosen)  # sums in the same order, and so the same bits
        self.state.progress.num_threads = torch.get_num_threads()

    # ---- the loop -------------------------------------------------------------------------------------------------
    def train(self, progress: bool) -> TrainSummary:
        """Train from the current step to the end; see `train_supernet`."""
        self._begin()
        start, began = self.state.progress.step, time.perf_counter()
        bar = progress_bar(self.schedule.num_steps, "supernet", "step", progress, initial=start, keeps=True)
        accuracies: dict[str, float] | None = None
        are_several = self.world.size > 1
        with bar, self.log, DeferredSignals(once=are_several) as signals, _patience(are_several):
            self._saved_at = time.monotonic()
            while accuracies is None:
                try:
                    self._train_on(bar, signals)
                    with signals.cut_in():
                        accuracies = self._evaluate("end")
                except (NonFiniteError, CollapseError) as error:
                    self._roll_back(error, bar)
                except Ended as ended:
                    self._save(done=False)
                    raise interrupts.Interrupted(ended.number) from None
            wall_s = time.perf_counter() - began
            if not self.was_done:
                self._save(done=True, good=True)
            signals.raise_received()
        images = self.config.batch_size + self.config.loader.gap_batch_size
        return TrainSummary(
            checkpoint=ckpt.checkpoint_path(self.run),
            num_steps=self.schedule.num_steps,
            resumed_from=start,
            wall_s=wall_s,
            images_per_s=(self.state.progress.step - start) * images / wall_s,
            top1=accuracies,
            num_rollbacks=self.state.progress.num_rollbacks,
            is_main=self.world.is_main,
        )

    def _train_on(self, bar: ProgressBar, signals: DeferredSignals) -> None:
        """Train to the end.

        Raises:
            NonFiniteError, CollapseError: it has to go back.
            Ended: a signal came, on any rank; all raise it. The state is that of the end of a step.
        """
        progress = self.state.progress
        if self._owes_evaluation():
            self._judge(self.schedule.plan(progress.step - 1).phase_name, signals)
        planned = self._planned_batches()
        while progress.step < self.schedule.num_steps:
            with signals.cut_in():
                plan, batch = next(planned)
            began = time.perf_counter()
            if plan.is_phase_start:
                self._enter_phase(plan)
            losses = self._update(plan, batch, signals)
            progress.step += 1
            images_per_s = len(batch.labels) * self.world.size / (time.perf_counter() - began)
            self._log(plan, losses, images_per_s, bar)
            last = progress.step == self.schedule.num_steps
            if self._owes_evaluation():
                self._judge(plan.phase_name, signals)
            elif (progress.step % self.config.checkpoint_every == 0 or self._is_late()) and not last:
                self._save(done=False)
            if received := self.world.largest(signals.received or 0, self.device):
                raise Ended(signal.Signals(received))

    def _owes_evaluation(self) -> bool:
        """True where an evaluation is due, or was when it was interrupted."""
        step = self.state.progress.step
        is_due = step > 0 and step % self.config.evaluate_every == 0 and step < self.schedule.num_steps
        return is_due and self.state.progress.evaluated_step != step

    def _judge(self, phase: str, signals: DeferredSignals) -> None:
        with signals.cut_in():
            self._evaluate(phase)
        self._save(done=False, good=True)

    def _is_late(self) -> bool:
        """True if the last checkpoint is older than wanted (by rank 0's clock)."""
        if self.config.checkpoint_minutes is None:
            return False
        minutes = (time.monotonic() - self._saved_at) / 60
        return bool(
            self.world.largest(int(self.world.is_main and minutes >= self.config.checkpoint_minutes), self.device)
        )

    def _planned_batches(self) -> Iterator[tuple[StepPlan, Batch]]:
        start = self.state.progress.step
        wanted = ((plan.step, plan.resolution) for plan in self.schedule.plans(start))
        shard = (self.world.rank, self.world.size)
        batches = training_batches(self.data, self.config.loader, wanted, device=self.device, shard=shard)
        return zip(self.schedule.plans(start), batches, strict=True)

    def _enter_phase(self, plan: StepPlan) -> None:
        """Fresh momentum, channels in order of importance before they are shrunk, and the teacher after phase 0."""
        self.state.optimizer.state.clear()
        if plan.phase == 1 and self.config.strategy == "progressive" and self.only is None:
            self._set_teacher(self._subnet(self.schedule.spaces[0].largest))
        if plan.sorts_channels:
            self.network.sort_channels()
        self.state.restart_average()

    def _set_teacher(self, teacher: StaticNetwork) -> None:
        self.world.same(teacher.state_dict().values())
        self.state.teacher = teacher
        if self.config.compile:
            teacher.compile(dynamic=False)

    @interrupts.patience()
    def _update(self, plan: StepPlan, batch: Batch, signals: DeferredSignals) -> dict[str, Terms]:
        """One step; one that is interrupted and takes long is given up."""
        self.network.train()
        state, config = self.state, self.config
        state.optimizer.zero_grad(set_to_none=True)
        in_place = config.strategy == "sandwich" and self.only is None
        before = [buffer.clone() for buffer in self.network.buffers()]
        # a phase that has begun is not begun again: its first step ends, however long it takes
        given_up = contextlib.nullcontext() if plan.is_phase_start else signals.cut_in(GIVE_UP_STEP_S)
        try:
            with given_up:
                losses = accumulate_gradients(
                    self.network, batch, plan, state.teacher, in_place, config.objective, self.execution
                )
        except Ended:
            for buffer, old in zip(self.network.buffers(), before, strict=True):
                buffer.copy_(old)
            raise
        lr = plan.lr * state.progress.lr_scale
        if apply_gradients(self.network, state.optimizer, lr, config.optimizer.clip_norm, self.execution.scaler):
            state.average()
        return losses

    def _roll_back(self, error: NonFiniteError | CollapseError, bar: ProgressBar) -> None:
        """Roll back to the newest checkpoint; after a collapse, or if that did not help, to the last that passed
        evaluation."""
        progress = self.state.progress
        if progress.num_rollbacks == MAX_ROLLBACKS:
            raise ChanasError(
                f"training still fails after {MAX_ROLLBACKS} rollbacks ({error}); the checkpoint of the last good "
                "step is whole; lower base_lr or set optimizer.clip_norm"
            )
        rollbacks, lr_scale = progress.num_rollbacks + 1, progress.lr_scale * ROLLBACK_LR_FACTOR
        again = progress.num_rollbacks > progress.num_rollbacks_when_good
        back_to_good = again or isinstance(error, CollapseError)
        self._load(ckpt.read_checkpoint(self.run, ckpt.good_path(self.run) if back_to_good else None))
        progress = self.state.progress
        progress.num_rollbacks, progress.lr_scale = rollbacks, lr_scale
        self.world.wait()  # all have read before anything is written
        self._cut_metrics()
        self._save(done=False)
        bar.reset(self.schedule.num_steps)
        bar.update(progress.step)
        self._say(
            f"{error}: back to step {progress.step} with {lr_scale:g} of the learning rate (rollback {rollbacks})"
        )

    def _say(self, text: str) -> None:
        if self.world.is_main:
            tqdm.write(text, file=sys.stderr)

    # ---- accuracy and metrics -------------------------------------------------------------------------------------
    def _subnet(self, architecture: Architecture) -> StaticNetwork:
        """A frozen copy in eval mode with BN statistics of its own."""
        network = calibrated_subnet(self.state.judged, architecture, self.images, self.config.recalibration_images)
        return network.requires_grad_(False)

    def _evaluate(self, phase: str) -> dict[str, float]:
        """Holdout accuracy of the largest and the smallest sub-network that are trained by now (at the end: of the
        space).

        Raises:
            CollapseError: the smallest is no better than guessing, and had been in this phase.
        """
        if self.only is not None:
            judged = {"only": self.only}
        else:
            index = next((i for i, p in enumerate(self.config.phases) if p.name == phase), None)
            space = self.space if index is None else self.schedule.spaces[index]
            judged = {"largest": space.largest, "smallest": space.smallest}
        accuracies = {
            name: top1(for_inference(self._subnet(a)), a.resolution, self.images, "holdout", None, self.world)
            for name, a in judged.items()
        }
        self._refuse_collapse(phase, accuracies.get("smallest", accuracies.get("only", 1.0)))
        progress = self.state.progress
        progress.evaluated_step = progress.step
        row = {"kind": "evaluation", "step": progress.step, "phase": phase}
        self._append({**row, **{f"top1_{name}": value for name, value in accuracies.items()}})
        progress.num_rollbacks_when_good = progress.num_rollbacks
        return accuracies

    def _refuse_collapse(self, phase: str, accuracy: float) -> None:
        labels = self.data.source.labels[self.data.indices("holdout")]
        chance = float(np.bincount(labels).max()) / len(labels)
        deviation = math.sqrt(chance * (1 - chance) / len(labels))
        if phase == "end":
            if self.only is None and self.schedule.spaces[-1].smallest != self.space.smallest:
                return  # no phase trained it
            phase = self.config.phases[-1].name
        best = self.state.progress.best_top1.get(phase, 0.0)
        if accuracy <= chance + CHANCE_DEVIATIONS * deviation and best > chance + 2 * CHANCE_DEVIATIONS * deviation:
            raise CollapseError(
                f"accuracy of the smallest sub-network collapsed from {best:.1%} to {accuracy:.1%} "
                f"(guessing: {chance:.1%}) at step {self.state.progress.step}"
            )
        self.state.progress.best_top1[phase] = max(accuracy, best)

    def _log(self, plan: StepPlan, losses: dict[str, Terms], images_per_s: float, bar: ProgressBar) -> None:
        mean, step = losses["all"], self.state.progress.step
        shown = {name: f"{v:.3f}" for name in ("train_loss", "generalization_gap") if (v := mean[name]) is not None}
        bar.set_postfix({"phase": plan.phase_name, **shown, "images/s": f"{images_per_s:.0f}"}, refresh=False)
        bar.update()
        if step % self.config.log_every == 0 or step == self.schedule.num_steps:
            lr = plan.lr * self.state.progress.lr_scale
            row = {"kind": "training", "step": step, "phase": plan.phase_name, "lr": lr}
            by_size = {name: terms for name, terms in losses.items() if name != "all"}
            self._append({**row, **mean, "images_per_s": round(images_per_s, 1), "by_size": by_size})

    def _append(self, row: dict[str, Any]) -> None:
        if self.world.is_main:
            wall_s = self._spent_s + time.perf_counter() - self._began
            self.log.append({**row, "wall_s": round(wall_s, 1)})

    def _cut_metrics(self) -> None:
        """Drop the rows of steps that are about to be done again, and say how many lines are no rows."""
        if self.world.is_main and (num_lost := self.log.cut(self.state.progress.step)):
            self._say(f"{ckpt.metrics_path(self.run)}: {num_lost} lines are damaged or cut short; they are left out")

    # ---- checkpoints ----------------------------------------------------------------------------------------------
    @interrupts.patience()
    def _save(self, done: bool, good: bool = False) -> None:
        """Rank 0 writes, the others wait; `good` marks what a collapse later goes back to."""
        if self.world.size > 1 and not self.config.sync_batch_norm:
            for buffer in self.network.buffers():
                buffer.copy_(self.world.mean(buffer))
        if self.world.is_main:
            ckpt.write_checkpoint(self.run, self._header(done), self.state.tensors(), self.config.keep_checkpoints)
            if good:
                ckpt.mark_good(self.run)
        self._saved_at = time.monotonic()
        self.world.wait()

    def _header(self, done: bool) -> dict[str, Any]:
        return {
            **setup_header(self.space, self.config, self.data),
            "architecture": None if self.only is None else self.only.key,
            "world_size": self.world.size,
            "num_steps": self.schedule.num_steps,
            "done": done,
            "inherited": self._inherited,
            **self.state.header(),
        }

    def _load(self, saved: ckpt.Checkpoint) -> None:
        if saved.header["splits_digest"] != self.data.splits.digest:
            raise CheckpointError(
                f"{ckpt.splits_path(self.run)} is not the one of the checkpoint beside it; restore it, "
                "or train anew with --overwrite"
            )
        num_threads = self.state.progress.num_threads
        self.state.load(saved, self.schedule.spaces[0].largest)
        self.state.progress.num_threads = num_threads
        if self.state.teacher is not None and self.config.compile:
            self.state.teacher.compile(dynamic=False)
