"""Compiled networks of a run: what one search has compiled, the next one only times."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from pathlib import Path

from chanas.files.run import RunDirectory
from chanas.files.writing import replacing

MOST_MODULES = 64
"""A few hundred kilobytes each; the ones used last are kept."""


def take_module(run: RunDirectory, digest: str, library: Path) -> bool:
    """Copy the module of this hash to `library`; False where the run has none."""
    stored = _place(run, digest)
    try:
        shutil.copyfile(stored, library)
    except FileNotFoundError:
        return False
    with contextlib.suppress(OSError):  # a run that can only be read
        os.utime(stored)
    return True


def keep_module(run: RunDirectory, digest: str, library: Path) -> None:
    """Keep a compiled network under the hash of what it was compiled from.

    Raises:
        ChanasError: it cannot be written.
    """
    stored = _place(run, digest)
    if not library.is_file() or (stored.exists() and filecmp.cmp(stored, library, shallow=False)):
        return
    with replacing(stored) as temporary:
        shutil.copyfile(library, temporary)
    for old in sorted(run.modules.glob("*.so"), key=lambda path: path.stat().st_mtime)[:-MOST_MODULES]:
        old.unlink(missing_ok=True)


def _place(run: RunDirectory, digest: str) -> Path:
    return run.modules / f"{digest}.so"
