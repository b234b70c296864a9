"""Decide which runs may be resumed, and which may be overwritten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chanas.core.arch import Architecture, SearchSpace
from chanas.errors import CheckpointError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.supernet.data.images import move_images
from chanas.supernet.training.checkpoint import Checkpoint, checkpoint_path, newest_whole, read_header, splits_path
from chanas.supernet.training.phases import TrainConfig

# config keys that may change when a run is resumed: how it is computed and recorded, not what is computed (but for
# rounding, and the number of images that BN sees at once)
_FREE_KEYS = frozenset(
    {
        "checkpoint_every",
        "checkpoint_minutes",
        "keep_checkpoints",
        "evaluate_every",
        "log_every",
        "num_micro_batches",
        "activation_checkpointing",
        "channels_last",
        "compile",
        "device",
    }
)


def resumable(run: RunDirectory) -> tuple[Checkpoint, Path]:
    """The newest whole checkpoint in `run`, and which file it is.

    Raises:
        CheckpointError: there is none, it was imported, or all are damaged.
    """
    if not checkpoint_path(run).exists():
        raise CheckpointError(f"nothing to resume: {checkpoint_path(run)} does not exist; start without --resume")
    saved, path = newest_whole(run)
    if saved.header["step"] == 0 and saved.header["done"]:
        raise CheckpointError(f"nothing to resume: {path} holds an imported supernet; train another run")
    return saved, path


def stored_setup(run: RunDirectory) -> tuple[SearchSpace, TrainConfig]:
    """Search space and config of the checkpoint in `run`, to resume with.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    header = resumable(run)[0].header
    return SearchSpace.from_json(header["space"]), stored_config(header)


def stored_config(header: dict[str, Any]) -> TrainConfig:
    """The config of a checkpoint."""
    return TrainConfig.from_json(header["config"], "checkpoint config")


def take_images(run: RunDirectory, images: Path | str) -> None:
    """Take the images that the supernet in `run` was trained on from another place, from now on.

    Raises:
        StageOrderError: there is no supernet yet.
        DataError: the images are others.
        CheckpointError: the checkpoint or its splits are damaged.
    """
    header = read_header(run)
    if header is None:
        raise StageOrderError(f"there is no supernet in {run.root} whose images could lie in {images}")
    move_images(stored_config(header).data, splits_path(run), Path(images))


def refuse_existing(run: RunDirectory) -> None:
    """A checkpoint is not overwritten unasked, unless nothing was trained yet.

    Raises:
        CheckpointError: there is a checkpoint with training in it, one that was imported, or a damaged one.
    """
    header = read_header(run)
    if header is None or (header["step"] == 0 and not header["done"]):
        return
    if header["step"] == 0:
        raise CheckpointError(f"{checkpoint_path(run)} holds an imported supernet; use --overwrite to replace it")
    steps = f"{header['step']} of {header.get('num_steps', 'unknown')} steps"
    state = "a finished run" if header["done"] else f"a run that did {steps}"
    raise CheckpointError(
        f"{checkpoint_path(run)} holds {state}; use --resume to continue it, or --overwrite to train anew"
    )


def check_resumable(
    header: dict[str, Any], path: Path, space: SearchSpace, config: TrainConfig, only: Architecture | None
) -> None:
    """Check that the checkpoint at `path` is one of this space, config and architecture.

    Raises:
        CheckpointError: it isn't.
    """
    stored_space = SearchSpace.from_json(header["space"])
    if stored_space.digest != space.digest:
        raise CheckpointError(
            f"checkpoint {path} is of space '{stored_space.name}' ({stored_space.digest}), not of "
            f"'{space.name}' ({space.digest}); resume with the space it was made with, or train anew with --overwrite"
        )
    key = None if only is None else only.key
    if header.get("architecture") != key:
        raise CheckpointError(
            f"checkpoint {path} is of {header.get('architecture') or 'a whole supernet'}, not of "
            f"{key or 'a whole supernet'}; train anew with --overwrite"
        )
    stored, given = stored_config(header).to_json(), config.to_json()
    for one in (stored, given):
        one["data"] = one["data"] | {"root": None}  # images may be moved
    if changed := [key for key in sorted(set(given) - _FREE_KEYS) if stored[key] != given[key]]:
        raise CheckpointError(
            f"checkpoint {path} was made with another {', '.join(changed)}; "
            "resume with the config it was made with, or train anew with --overwrite"
        )
