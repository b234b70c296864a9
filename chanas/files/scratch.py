"""Folders for what is only needed while a process runs. One that was killed can't remove its own: the next one does.

A folder in use is locked (`flock`), and the kernel frees the lock however its holder ends. Nobody else's folder is
touched, and no lock is held on a folder for a moment in which another process could find it free.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from chanas.errors import ChanasError
from chanas.files.locks import opened_lock

_FULL = (errno.ENOSPC, errno.EDQUOT)
# Under this nothing of use can be written any more, whatever the error says.
_MIN_FREE_BYTES = 1 << 20


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of its own under the system's temporary one, removed at the end; those of dead processes go too.

    Raises:
        ChanasError: no temporary folder can be written, or it filled up in the body.
    """
    folder, handle = _make()
    try:
        yield folder
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _no_space(folder, os.strerror(error.errno)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def raise_if_full(folder: Path, reason: str) -> None:
    """Tell a full disk from a candidate's own failure: the next candidate would fail too, and no record is made of it.

    Args:
        folder: where the failed work wrote.
        reason: what it failed with.

    Raises:
        ChanasError: the reason is a full disk, or there is no space left in the folder.
    """
    is_full = any(os.strerror(code) in reason for code in _FULL)
    with contextlib.suppress(OSError):
        is_full = is_full or shutil.disk_usage(folder).free < _MIN_FREE_BYTES
    if is_full:
        raise _no_space(folder, reason)


def _no_space(folder: Path, reason: str) -> ChanasError:
    return ChanasError(
        f"no space left for temporary files in {folder.parent} ({reason}); free some, or set TMPDIR to a folder with "
        "more, and run the same command again: what was measured is kept"
    )


def _make() -> tuple[Path, int]:
    """A new folder and the handle that keeps it locked."""
    try:
        parent = Path(tempfile.gettempdir())
        prefix = f"chanas-{os.getuid()}-"
        with opened_lock(parent / f"{prefix}scratch.lock") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)  # from here on nobody looks for abandoned folders
            _remove_abandoned(parent, prefix)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder, handle
    except (OSError, ChanasError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ChanasError(
            f"no folder for temporary files can be written ({reason}); set TMPDIR to one that can"
        ) from error


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for entry in parent.glob(f"{prefix}*/"):
        with contextlib.suppress(OSError):  # gone already, a link, or somebody is in it
            handle = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(handle).st_uid == os.getuid():
                    shutil.rmtree(entry, ignore_errors=True)
            finally:
                os.close(handle)
