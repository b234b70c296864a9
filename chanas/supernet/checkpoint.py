"""The checkpoint: one safetensors file whose header carries its JSON, so that the two can never disagree.

`checkpoint.json` beside it is a copy for people and other tools; nothing here reads it.
Tensors: `supernet.*` weights and BN statistics, `momentum.*` of the optimiser by parameter name, `teacher.*` where
there is a frozen one.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from chanas.errors import CheckpointError, StageOrderError
from chanas.run import RunDirectory, replacing, write_json

SCHEMA = 1
_HEADER = "chanas"
_REQUIRED = frozenset(
    {
        "schema",
        "space",
        "space_digest",
        "config",
        "class_names",
        "num_classes",
        "step",
        "done",
        "splits_digest",
        "checksum",
    }
)


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


def splits_path(run: RunDirectory) -> Path:
    return run.supernet / "splits.json"


def metrics_path(run: RunDirectory) -> Path:
    return run.supernet / "metrics.jsonl"


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    try:
        own = metadata.version("chanas")
    except metadata.PackageNotFoundError:  # run from a source tree
        own = "source"
    return {"chanas": own, "torch": str(torch.__version__)}


def write_checkpoint(run: RunDirectory, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write the checkpoint whole or not at all; a kill at any moment leaves the old one or the new one.

    Raises:
        ChanasError: it cannot be written (no space, no permission); the old one is left whole.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    full = {**header, "schema": SCHEMA, "checksum": _checksum(plain)}
    data = save(plain, metadata={_HEADER: json.dumps(full, sort_keys=True, allow_nan=False)})
    with replacing(checkpoint_path(run)) as temporary:
        temporary.write_bytes(data)
    write_json(run.supernet / "checkpoint.json", full)


def read_header(run: RunDirectory) -> dict[str, Any] | None:
    """The checkpoint's JSON alone, or None when there is no checkpoint.

    Raises:
        CheckpointError: it is cut short, damaged, or of another kind.
    """
    path = checkpoint_path(run)
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_HEADER])
    except (SafetensorError, OSError, json.JSONDecodeError, KeyError) as error:
        raise _damaged(path, str(error)) from error
    if header.get("schema") != SCHEMA:
        raise CheckpointError(
            f"checkpoint {path} has schema {header.get('schema')}, this version reads {SCHEMA}; "
            "train again with --overwrite"
        )
    if missing := _REQUIRED - set(header):
        raise _damaged(path, f"it lacks {', '.join(sorted(missing))}")
    return dict(header)


def read_checkpoint(run: RunDirectory) -> Checkpoint:
    """The whole checkpoint.

    Raises:
        StageOrderError: there is none yet.
        CheckpointError: it is cut short, damaged, or of another kind.
    """
    header = read_header(run)
    path = checkpoint_path(run)
    if header is None:
        raise StageOrderError(f"supernet checkpoint {path} does not exist; run `chanas train-supernet` first")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise _damaged(path, str(error)) from error
    if _checksum(tensors) != header["checksum"]:
        raise _damaged(path, "its checksum does not fit its tensors")
    return Checkpoint(header, tensors)


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path} is cut short or damaged ({' '.join(reason.split())}); "
        "restore it, or train again with --overwrite"
    )


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(
            tensors[name].contiguous().view(-1).view(torch.uint8).numpy().data, zlib.crc32(name.encode(), value)
        )
    return value
