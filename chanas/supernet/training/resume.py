"""Decide which runs may be resumed, and which may be overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from chanas.core.arch import Architecture, SearchSpace
from chanas.errors import CheckpointError, StageOrderError
from chanas.files.run import RunDirectory
from chanas.supernet.data.images import move_images
from chanas.supernet.training.checkpoint import (
    Checkpoint,
    checkpoint_path,
    checksum_of,
    newest_whole,
    read_header,
    splits_path,
)
from chanas.supernet.training.phases import TrainConfig

_MAX_SHOWN = 60
_REMEDY = "name another --run, train anew with --overwrite, or take its settings as they are with --resume"

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


def continues(
    run: RunDirectory,
    space: SearchSpace,
    config: TrainConfig,
    only: Architecture | None,
    inherited: nn.Module | None,
    asked: bool,
) -> bool:
    """True where the checkpoint in `run` is one of these settings, which training continues; False where there is none,
    or none with training in it.

    Args:
        inherited: the weights to begin with.
        asked: there has to be a checkpoint to continue, and weights to begin with need not be named again.

    Raises:
        CheckpointError: the checkpoint is of other settings, which the message names, or was imported, or is damaged.
    """
    if not asked and not checkpoint_path(run).exists():
        return False
    saved, path = resumable(run)
    header = saved.header
    if header["step"] == 0 and not asked:
        return False
    check_resumable(header, path, space, config, only)
    is_named = inherited is not None or not asked
    if is_named and "inherited" in header and header["inherited"] != checksum_of(inherited):
        raise CheckpointError(f"{_described(header, path)}, which began with other weights; {_REMEDY}")
    return True


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
    raise CheckpointError(f"{_described(header, checkpoint_path(run))}; use --overwrite to replace it")


def _described(header: dict[str, Any], path: Path) -> str:
    steps = f"{header['step']} of {header.get('num_steps', 'unknown')} steps"
    return f"{path} holds {'a finished run' if header['done'] else f'a run that did {steps}'}"


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
            f"{_described(header, path)} in space '{stored_space.name}' ({stored_space.digest}), not in "
            f"'{space.name}' ({space.digest}); {_REMEDY}"
        )
    key = None if only is None else only.key
    if header.get("architecture") != key:
        raise CheckpointError(
            f"{_described(header, path)} of {header.get('architecture') or 'a whole supernet'}, not of "
            f"{key or 'a whole supernet'}; {_REMEDY}"
        )
    stored, given = stored_config(header).to_json(), config.to_json()
    for one in (stored, given):
        one["data"] = one["data"] | {"root": None}  # images may be moved
    if changed := [key for key in sorted(set(given) - _FREE_KEYS) if stored[key] != given[key]]:
        values = "; ".join(d for key in changed for d in _differences(key, stored[key], given[key]))
        raise CheckpointError(f"{_described(header, path)} with another {', '.join(changed)} ({values}); {_REMEDY}")


def _differences(name: str, stored: Any, given: Any) -> list[str]:
    """The values in which two entries of a config differ, in words."""
    if isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given):
        stored, given = (dict(enumerate(values)) for values in (stored, given))
    if isinstance(stored, dict) and isinstance(given, dict):
        keys = [key for key in sorted({*stored, *given}) if stored.get(key) != given.get(key)]
        return [text for key in keys for text in _differences(f"{name}.{key}", stored.get(key), given.get(key))]
    return [f"{name}: {_short(stored)}, not {_short(given)}"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
