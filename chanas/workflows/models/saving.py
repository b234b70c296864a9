"""The folder of a tuned network, written whole."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.numpy import save_file

from chanas.bundle.tuned import DOCUMENT, MODULE, SOURCE, WEIGHTS
from chanas.errors import ConfigError
from chanas.files.writing import file_digest, replacing_folder, write_json

if TYPE_CHECKING:
    from chanas.prescheduler.models.module import ProgramModule


def default_folder(run: Path, name: str, num_threads: int) -> Path:
    """The place of a network in the run directory, one for each number of threads: `NAME`, `NAME-2t`."""
    return run / (name if num_threads == 1 else f"{name}-{num_threads}t")


def check_place(folder: Path, run: Path | None = None) -> None:
    """Check that a network may be saved in `folder`, before the time for tuning it is spent.

    Args:
        run: the run directory, which must not lie in a folder that is replaced.

    Raises:
        ConfigError: there is something else than an earlier tuned network, or it cannot be written.
    """
    is_free = not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free and not (folder / DOCUMENT).is_file():
        raise ConfigError(f"{folder} is there already and was not made by `chanas tune`; name another folder")
    if run is not None and run.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"{folder} is replaced as a whole, and would take the records of run {run} along; name another folder"
        )
    parent = next(p for p in folder.absolute().parents if os.path.lexists(p))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"cannot write {folder}: {parent} is no folder that you may write to; name another one")


def write_folder(folder: Path, library: bytes, made: ProgramModule, document: Mapping[str, Any]) -> None:
    """Write module, weights and `tuned.json`; a folder that is there is replaced when the new one is complete.

    Raises:
        ConfigError: there is something else than an earlier tuned network.
        ChanasError: it cannot be written.
    """
    check_place(folder)
    names = [f"parameter{i}" for i in range(len(made.parameters))]
    with replacing_folder(folder) as temporary:
        (temporary / MODULE).write_bytes(library)
        save_file(dict(zip(names, made.parameters, strict=True)), temporary / WEIGHTS)
        (temporary / SOURCE).write_text(made.to_json(), encoding="utf-8")
        hashes = {name: file_digest(temporary / name) for name in (MODULE, WEIGHTS, SOURCE)}
        write_json(temporary / DOCUMENT, {**document, "parameters": names, "hashes": hashes})
