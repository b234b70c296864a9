"""Results of earlier stages in a run directory: the supernet's task, the supernet itself, and latency tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chanas.core.arch import SearchSpace
from chanas.core.target import HardwareTarget
from chanas.core.task import Task
from chanas.core.usage import TargetName
from chanas.devices.gpu_use import GPU_TARGET
from chanas.errors import CheckpointError, ConfigError, StageOrderError
from chanas.files.documents import Document
from chanas.files.run import RunDirectory
from chanas.workflows.stages.shipped import nearest_table

if TYPE_CHECKING:
    from chanas.supernet.training.evaluate import SupernetEvaluator


DEFAULT_NUM_CLASSES = 10


@dataclass(frozen=True)
class _Supernet:
    """Part of `supernet/checkpoint.json` that is read outside of the training."""

    space: dict[str, Any]
    num_classes: int
    seed: int = 0
    done: bool = False
    published: dict[str, Any] | None = None


SUPERNET = Document("supernet checkpoint", _Supernet, "restore it, or train again with --overwrite")


def stored_table(run: RunDirectory, target: HardwareTarget, task: Task | None = None) -> Path:
    """Path of the run's latency table of a target; `task` is what the table is to be of, by default that of the run's
    supernet, where there is one.

    Raises:
        StageOrderError: there is none; the message names those that are there and the command that makes it.
    """
    if not run.lut(target.name).is_file():
        raise no_table(run, target, task)
    return run.lut(target.name)


def supernet_task(run: RunDirectory) -> tuple[SearchSpace, int]:
    """Read search space and number of classes of the run's supernet from its JSON alone: limits that can't be met are
    reported before the supernet is loaded.

    Raises:
        StageOrderError: there is no supernet; the message names the command that makes it.
    """
    stored = stored_task(run)
    if stored is None or not (run.supernet / "checkpoint.safetensors").is_file():
        raise StageOrderError(f"there is no supernet in {run.root}; run `chanas train-supernet --run {run.root}` first")
    return stored


def load_supernet(run: RunDirectory) -> SupernetEvaluator:
    """The run's supernet, which `supernet_task` is about.

    Raises:
        CheckpointError: it is damaged, or not that of the JSON beside it.
        DataError: its images are not there, or changed since training.
    """
    from chanas.supernet.training.evaluate import SupernetEvaluator

    supernet = SupernetEvaluator.load(run)
    if (supernet.space, supernet.num_classes) != supernet_task(run):
        raise CheckpointError(
            f"{run.supernet / 'checkpoint.json'} is not that of the checkpoint beside it; restore it, or train again "
            "with --overwrite"
        )
    return supernet


def no_table(run: RunDirectory, target: HardwareTarget, task: Task | None = None) -> StageOrderError:
    """Return the error for a missing table: the tables that exist, and the commands that make it."""
    there = sorted(p.stem for p in run.luts.glob("*.json"))
    found = f"; there are tables of: {', '.join(there)}" if there else ""
    if any("@" in name for name in there):
        found += " (what follows an @ is a device's key: name it with --rpc HOST:PORT --key KEY)"
    name, _, key = target.name.partition("@")
    device = GPU_TARGET if name.partition("-")[0] == GPU_TARGET else target.local_name
    wanted = TargetName(device, target.num_threads, target.dtype_name, target.batch, key)
    commands = f"`{' '.join([prescheduler_command(wanted), *_task_options(run, task)])} --run {run.root}` first"
    adapt = None if device == GPU_TARGET else _adapt_command(run, target, wanted, task)
    if adapt is not None:
        commands += f", or, in minutes and from the table of another processor, `{adapt}`"
    return StageOrderError(f"there is no latency table of target '{target.name}' in {run.root}{found}; run {commands}")


def _adapt_command(run: RunDirectory, target: HardwareTarget, wanted: TargetName, task: Task | None) -> str | None:
    """The command that makes the table from one that comes with chanas; None where none has blocks of the space."""
    stored = stored_task(run)
    space = stored[0] if stored else None if task is None else task.space
    nearest = nearest_table(target, space)
    if nearest is None:
        return None
    name, lut = nearest
    options = _usage_options(wanted)
    if stored is None and task is not None:  # else the command finds out by itself
        if lut.header.space_digest != task.space.digest:
            options.append(f"--space {task.space.name}")
        if not lut.covered(task.space, task.num_classes):
            options.append(f"--num-classes {task.num_classes}")
    return " ".join([f"chanas lut adapt --from {name}", *options, f"--run {run.root}"])


def _task_options(run: RunDirectory, task: Task | None) -> list[str]:
    """Options that say what a table is to be of, where `chanas prescheduler` does not find that out by itself."""
    if task is None or stored_task(run) is not None:
        return []
    options = [f"--space {task.space.name}"]
    return options + ([] if task.num_classes == DEFAULT_NUM_CLASSES else [f"--num-classes {task.num_classes}"])


def prescheduler_command(target: TargetName) -> str:
    """The command that makes the table of a target."""
    options = [f"--target {target.device}"] if target.device == GPU_TARGET or not target.key else []
    return " ".join(["chanas prescheduler", *options, *_usage_options(target)])


def _usage_options(target: TargetName) -> list[str]:
    """Options that say where a target is and how it is used."""
    options = [f"--rpc HOST:PORT --key {target.key}"] if target.key else []
    options += [f"--threads {target.threads}"] if target.threads > 1 else []
    options += [f"--dtype {target.dtype}"] if target.dtype != "f32" else []
    options += [f"--batch {target.batch}"] if target.batch > 1 else []
    return options


def stored_task(run: RunDirectory) -> tuple[SearchSpace, int] | None:
    """Search space and number of classes of the supernet in `run`, read from its JSON alone; None without one.

    Raises:
        CheckpointError: the JSON is damaged.
    """
    path = run.supernet / "checkpoint.json"
    if not path.is_file():
        return None
    return SUPERNET.read_with(path, lambda data: (SearchSpace.from_json(data["space"]), data["num_classes"]))


def check_task(run: RunDirectory, space: SearchSpace | None, num_classes: int | None) -> None:
    """Check that a space and a number of classes that are named are those of the run's supernet, if there is one.

    Raises:
        ConfigError: they differ; a search would find no table of the supernet.
    """
    check_num_classes(num_classes)
    stored = stored_task(run)
    if stored is None:
        return
    other = "leave the option out, or name another run for it with --run"
    if space is not None and space != stored[0]:
        raise ConfigError(
            f"the supernet in {run.root} is of space '{stored[0].name}' ({stored[0].digest}), --space names "
            f"'{space.name}' ({space.digest}); {other}"
        )
    if num_classes is not None and num_classes != stored[1]:
        raise ConfigError(
            f"the supernet in {run.root} has {stored[1]} classes, --num-classes names {num_classes}; {other}"
        )


def check_num_classes(num_classes: int | None) -> None:
    """Raise ConfigError where a number of classes is named and no network can have it."""
    if num_classes is not None and num_classes < 1:
        raise ConfigError(f"expected at least 1 class, got {num_classes}")


def is_published(run: RunDirectory) -> bool:
    """True if the supernet in `run` was trained by others (`chanas import-supernet`).

    Raises:
        CheckpointError: its JSON is damaged.
    """
    path = run.supernet / "checkpoint.json"
    return path.is_file() and SUPERNET.read(path).get("published") is not None
