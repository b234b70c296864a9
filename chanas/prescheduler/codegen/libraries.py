"""Relax executables as shared libraries."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from chanas.core.target import HardwareTarget
from chanas.prescheduler.codegen.linkers import library_maker


def export(executable: Any, library_path: Path, target: HardwareTarget) -> None:
    """A Relax executable as a shared library that `relax.VirtualMachine` loads."""
    with tempfile.TemporaryDirectory(dir=library_path.parent) as objects:  # not where a killed process leaves them
        make = library_maker(target.mtriple)
        executable.export_library(str(library_path), fcompile=make, workspace_dir=objects)
