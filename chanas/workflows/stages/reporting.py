"""The report page of a run directory."""

from __future__ import annotations

from pathlib import Path

from chanas.errors import ChanasError
from chanas.files.run import RunDirectory


def report(run: RunDirectory) -> Path:
    """Write the run's report page.

    Raises:
        ChanasError: the run directory does not exist.
    """
    from chanas.report.page import build_report

    if not run.root.is_dir():
        raise ChanasError(f"run directory {run.root} does not exist; the stages make one")
    return build_report(run)
