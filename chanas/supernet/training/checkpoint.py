"""The checkpoint: one safetensors file whose header carries its JSON, so that the two can never disagree.

`checkpoint.json` beside it is a copy for people and other tools; nothing here reads it. In `checkpoints/` lie the last
few as `step-00001000.safetensors`, and the last one that passed an evaluation as `good.safetensors`: hard links where
the file system has them, so that the newest takes no space twice. No file is changed once it is written.
Tensors: `supernet.*` weights and BN statistics, `momentum.*` of the optimiser by parameter name, `teacher.*` where
there is a frozen one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from chanas.errors import ChanasError, CheckpointError, StageOrderError
from chanas.files.documents import first_fault
from chanas.files.run import RunDirectory
from chanas.files.writing import parse_json, replacing, write_json

SCHEMA = 1
_HEADER = "chanas"
_KEPT = re.compile(r"step-(\d{8,})\.safetensors")


@dataclass(frozen=True)
class _Header:
    """Content of a checkpoint's header; the rest (`chanas.supernet.training.state.Progress`) has defaults."""

    schema: int
    space: dict[str, Any]
    space_digest: str
    config: dict[str, Any]
    class_names: list[str]
    num_classes: int
    step: int
    done: bool
    splits_digest: str
    checksum: int
    num_steps: int = 0
    architecture: str | None = None
    scaler: dict[str, float] | None = None
    lr_scale: float = 1.0
    num_rollbacks: int = 0
    num_rollbacks_when_good: int = 0
    best_top1: dict[str, float] = field(default_factory=dict)
    num_averaged: int = 0
    num_threads: int = 1
    evaluated_step: int = 0
    inherited: int | None = None


class DamagedCheckpointError(CheckpointError):
    """A checkpoint file whose content is not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """`header` is the JSON; `tensors` are on the CPU."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under `prefix.`, without it."""
        start = f"{prefix}."
        return {name.removeprefix(start): t for name, t in self.tensors.items() if name.startswith(start)}


def checkpoint_path(run: RunDirectory) -> Path:
    return run.supernet / "checkpoint.safetensors"


def good_path(run: RunDirectory) -> Path:
    """Path of the checkpoint of the last evaluation that passed, which `mark_good` leaves."""
    return _kept_folder(run) / "good.safetensors"


def kept_checkpoints(run: RunDirectory) -> list[Path]:
    """The checkpoints kept by step, newest first; the first of them is the newest one under another name."""
    return [path for _, path in _kept_steps(run)]


def splits_path(run: RunDirectory) -> Path:
    return run.supernet / "splits.json"


def metrics_path(run: RunDirectory) -> Path:
    return run.supernet / "metrics.jsonl"


def versions() -> dict[str, str]:
    """Versions of the libraries that the numbers depend on."""
    try:
        own = metadata.version("chanas")
    except metadata.PackageNotFoundError:  # run from a source tree
        own = "source"
    return {"chanas": own, "torch": str(torch.__version__)}


def write_checkpoint(
    run: RunDirectory, header: Mapping[str, Any], tensors: Mapping[str, Tensor], keep: int = 3
) -> None:
    """Write the newest checkpoint, and keep the last `keep` of them by step.

    A kill at any moment leaves the old one or the new one as the newest, and as many whole ones as there were. Kept
    ones of later steps are removed: after a rollback they belong to a course that was given up.

    Args:
        run: where to.
        header: what `read_header` gives back; `step` is the number of steps done.
        tensors: by name; on any device.
        keep: how many to keep in `checkpoints/`, this one included; 0 for none.

    Raises:
        ChanasError: it cannot be written (no space, no permission); what was there is left whole.
    """
    _remove(*_leftovers(run))
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    full = {**header, "schema": SCHEMA, "checksum": _checksum(plain)}
    text = json.dumps(full, sort_keys=True, allow_nan=False)
    with replacing(checkpoint_path(run)) as temporary:
        try:
            save_file(plain, temporary, metadata={_HEADER: text})
        except SafetensorError as error:
            raise OSError(str(error)) from error
    write_json(run.supernet / "checkpoint.json", full)
    step = int(header["step"])
    if keep > 0:
        _link(checkpoint_path(run), _kept_folder(run) / f"step-{step:08d}.safetensors")
    kept = _kept_steps(run)
    _remove(*(path for number, path in kept if number > step))
    _remove(*[path for number, path in kept if number <= step][keep:])


def mark_good(run: RunDirectory) -> None:
    """Keep the newest checkpoint as the last good one too, however many newer ones follow.

    Raises:
        StageOrderError: there is no checkpoint yet.
        ChanasError: it cannot be written; the last good one before is left whole.
    """
    if not checkpoint_path(run).exists():
        raise _missing(checkpoint_path(run))
    _link(checkpoint_path(run), good_path(run))


def clear(run: RunDirectory) -> None:
    """Remove every checkpoint, the newest one last, so that a kill meanwhile leaves no older one in its place.

    Raises:
        ChanasError: one cannot be removed.
    """
    _remove(*_leftovers(run), *reversed(kept_checkpoints(run)), good_path(run))
    _remove(checkpoint_path(run), run.supernet / "checkpoint.json")
    with contextlib.suppress(OSError):  # it is not there, or holds something of the user's
        _kept_folder(run).rmdir()


def read_header(run: RunDirectory, path: Path | None = None) -> dict[str, Any] | None:
    """The JSON of the newest checkpoint, or of the one at `path`, alone; None when there is none.

    Raises:
        CheckpointError: it is cut short, damaged, or of another kind.
    """
    path = path or checkpoint_path(run)
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {})[_HEADER]
        header = parse_json(text)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise _damaged(path, str(error)) from error
    schema = header.get("schema") if isinstance(header, dict) else None
    if schema != SCHEMA:
        raise CheckpointError(
            f"checkpoint {path} has schema {schema}, this version reads {SCHEMA}; train again with --overwrite"
        )
    if (fault := first_fault(text, _Header)) is not None:
        raise _damaged(path, fault)
    return dict(header)


def read_checkpoint(run: RunDirectory, path: Path | None = None) -> Checkpoint:
    """The whole newest checkpoint, or the one at `path`.

    Raises:
        StageOrderError: there is none yet.
        CheckpointError: it is cut short, damaged, or of another kind.
    """
    path = path or checkpoint_path(run)
    header = read_header(run, path)
    if header is None:
        raise _missing(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise _damaged(path, str(error)) from error
    if _checksum(tensors) != header["checksum"]:
        raise _damaged(path, "its checksum does not fit its tensors")
    return Checkpoint(header, tensors)


def newest_whole(run: RunDirectory) -> tuple[Checkpoint, Path]:
    """The newest checkpoint if it is whole, else the newest kept one that is, else the last good one; and its file.

    Raises:
        StageOrderError: there is none yet.
        CheckpointError: none of them is whole, or the newest is of another schema.
    """
    candidates = (checkpoint_path(run), *kept_checkpoints(run), good_path(run))
    tried = [path for path in candidates if path.exists()]
    if not tried:
        raise _missing(checkpoint_path(run))
    errors = []
    for path in tried:
        try:
            return read_checkpoint(run, path), path
        except DamagedCheckpointError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    raise CheckpointError(
        f"all {len(tried)} checkpoints in {run.supernet} are cut short or damaged "
        f"({', '.join(str(path.relative_to(run.supernet)) for path in tried)}); restore one, or train again with "
        "--overwrite"
    ) from errors[0]


def _kept_folder(run: RunDirectory) -> Path:
    return run.supernet / "checkpoints"


def _kept_steps(run: RunDirectory) -> list[tuple[int, Path]]:
    """Step and file of the kept checkpoints, newest first."""
    found = ((_KEPT.fullmatch(path.name), path) for path in _kept_folder(run).glob("step-*"))
    return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)


def _leftovers(run: RunDirectory) -> list[Path]:
    """Half-written files that a kill left behind."""
    return [*run.supernet.glob(".checkpoint.*.tmp"), *_kept_folder(run).glob(".*.tmp")]


def _link(source: Path, target: Path) -> None:
    """`target` becomes a second name of `source`, or a copy where the file system has no hard links."""
    with replacing(target) as temporary:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)


def _remove(*paths: Path) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ChanasError(f"cannot remove {path}: {error.strerror or error}; remove it by hand") from error


def _missing(path: Path) -> StageOrderError:
    return StageOrderError(f"supernet checkpoint {path} does not exist; run `chanas train-supernet` first")


def _damaged(path: Path, reason: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(
        f"checkpoint {path} is cut short or damaged ({' '.join(reason.split())}); "
        "restore it, go on from one kept before it with --resume, or train again with --overwrite"
    )


def checksum_of(network: nn.Module | None) -> int | None:
    """A number that tells the weights of a network from others."""
    return None if network is None else _checksum(network.state_dict())


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(
            tensors[name].contiguous().view(-1).view(torch.uint8).numpy().data, zlib.crc32(name.encode(), value)
        )
    return value
