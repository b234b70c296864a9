"""Files of knobs that trials of a run came from, kept next to its records as `knobs/NAME-HASH.yaml`: the file's own
name, and the hash of its content (`file_digest`). Such a copy is a file for `--knobs` like any other.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from chanas.compiler.knobs import read_knobs
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest, replacing


def keep_knobs(file: Path, run: RunDirectory) -> Path:
    """Copy a file of knobs into the run, once for each content.

    Raises:
        ChanasError: it cannot be written.
    """
    digest = file_digest(file)
    kept = kept_knobs(run, digest)
    if kept is None:
        kept = run.knobs / f"{file.stem}-{digest}.yaml"
        with replacing(kept) as temporary:
            shutil.copyfile(file, temporary)
    return kept


def describe_knobs(file: Path) -> dict[str, str]:
    """Name and hash of a file of knobs, for documents about what was tuned with it.

    Raises:
        ConfigError: it is no such file (`read_knobs`).
    """
    read_knobs(file)
    return {"name": file.name, "hash": file_digest(file)}


def kept_knobs(run: RunDirectory, digest: str) -> Path | None:
    """The kept file with this hash; None without one, or where it is not what it was."""
    found = (path for path in sorted(run.knobs.glob("*.yaml")) if path.stem.endswith(f"-{digest}"))
    return next((path for path in found if file_digest(path) == digest), None)
