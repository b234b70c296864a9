"""A bundle as one file: written once, the same bytes for the same files; unpacked into nothing but its own folder."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from chanas.errors import ServiceError
from chanas.files.writing import replacing, replacing_folder


def pack(folder: Path, archive: Path) -> dict[str, int | str]:
    """Write the files of a folder into a tar archive, whole or not at all; its `num_bytes` and `sha256`."""
    with replacing(archive) as temporary:
        with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as tar:
            for file in sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink()):
                entry = tarfile.TarInfo(file.relative_to(folder).as_posix())
                entry.size, entry.mode = file.stat().st_size, 0o644
                with open(file, "rb") as content:
                    tar.addfile(entry, content)
        with open(temporary, "rb") as written:
            sha256 = hashlib.file_digest(written, "sha256").hexdigest()
        return {"num_bytes": temporary.stat().st_size, "sha256": sha256}


def unpack(archive: BinaryIO, folder: Path) -> None:
    """Write the files of an archive into a folder, which it replaces when all of them are there.

    Raises:
        ServiceError: it is no archive, or has something else than plain files below it.
        ChanasError: the folder cannot be written.
    """
    try:
        with replacing_folder(folder) as temporary, tarfile.open(fileobj=archive, mode="r|") as tar:
            for entry in tar:
                place = PurePosixPath(entry.name)
                content = tar.extractfile(entry) if entry.isreg() else None
                if content is None or place.is_absolute() or ".." in place.parts:
                    raise ServiceError(f"the bundle holds {entry.name!r}, which is no plain file below it")
                path = temporary / place
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "wb") as file:
                    while chunk := content.read(1 << 20):
                        file.write(chunk)
    except tarfile.TarError as error:
        raise ServiceError(f"the bundle came in damaged ({error}); fetch it again") from error
