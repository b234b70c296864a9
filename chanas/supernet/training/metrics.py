"""Training metrics as JSON lines, one row per logged step or evaluation, and as TensorBoard's event files if asked for.

`metrics.jsonl` is what counts. The event files follow it: what a resumed or rolled-back run does again is hidden there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chanas.errors import ChanasError, CheckpointError, ConfigError
from chanas.files.documents import parse_row
from chanas.files.run import RunDirectory
from chanas.files.writing import replacing
from chanas.supernet.training.checkpoint import metrics_path

_NOT_SCALARS = frozenset({"kind", "step", "phase"})


def append_metrics(run: RunDirectory, row: dict[str, Any]) -> None:
    """Add one row to `metrics.jsonl`.

    Raises:
        ChanasError: it cannot be written (no space, no permission); the rows before it are whole.
    """
    line = json.dumps(row, allow_nan=False) + "\n"
    try:
        with open(metrics_path(run), "a") as file:
            file.write(line)
    except OSError as error:
        raise ChanasError(f"cannot write {metrics_path(run)}: {error.strerror or error}") from error


@dataclass(frozen=True)
class _Row:
    """Content of every row."""

    step: int
    phase: str | None = None
    wall_s: float = 0.0


def read_metrics(run: RunDirectory) -> list[dict[str, Any]]:
    """The rows written so far; a line that a kill cut short, or that is no row, is left out. Empty when there are none.

    Raises:
        CheckpointError: the file cannot be read.
    """
    return [row for row in _read_lines(run) if row is not None]


def _read_lines(run: RunDirectory) -> list[dict[str, Any] | None]:
    """A row for each line, None where it is none."""
    path = metrics_path(run)
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise CheckpointError(f"metrics {path} cannot be read: {error.strerror or error}") from error
    return [parse_row(line, _Row) for line in lines if line]


def cut_metrics(run: RunDirectory, step: int) -> int:
    """Drop the rows of steps after `step`, which are about to be done again, and lines that are no rows; return the
    number of the latter."""
    lines = _read_lines(run)
    kept = [row for row in lines if row is not None and row["step"] <= step and row.get("phase") != "end"]
    with replacing(metrics_path(run)) as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept))
    return lines.count(None)


def tensorboard_path(run: RunDirectory) -> Path:
    """The folder of event files: what `tensorboard --logdir` is given."""
    return run.supernet / "tensorboard"


class TensorBoardLog:
    """Metrics as scalars in TensorBoard's event files, opened when the first row comes."""

    def __init__(self, run: RunDirectory) -> None:
        """Raises ConfigError: the package `tensorboard` is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                f"TensorBoard event files need the package tensorboard, which is not there ({error}); install it with: "
                "pip install 'tensorboard>=2.16'"
            ) from error
        self._run = run
        self._make_writer: Any = SummaryWriter
        self._writer: Any = None

    def append(self, row: Mapping[str, Any]) -> None:
        """Add the numbers of a row, such as `training/smallest/train_loss`.

        Call it before the row is in `metrics.jsonl`: when the files are opened, what they hold of steps after the last
        row there is hidden.

        Raises:
            ChanasError: the files cannot be written.
        """
        try:
            if self._writer is None:
                steps = [int(r["step"]) for r in read_metrics(self._run)]
                purge_step = max(steps) + 1 if steps else 0
                self._writer = self._make_writer(str(tensorboard_path(self._run)), purge_step=purge_step)
            for tag, value in scalars(row):
                self._writer.add_scalar(tag, value, row["step"])
        except OSError as error:
            raise self._unwritten(error) from error

    def close(self) -> None:
        """Write out what is held back; a later `append` opens new files.

        Raises:
            ChanasError: the files cannot be written.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError as error:
                raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> ChanasError:
        return ChanasError(f"cannot write {tensorboard_path(self._run)}: {error.strerror or error}")


def scalars(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Tag and value of each number in a row of `metrics.jsonl`: `kind/name`, and inside `by_size` `kind/size/name`."""
    kind = row["kind"]
    for name, value in row.items():
        if name == "by_size":
            for size, terms in value.items():
                yield from ((f"{kind}/{size}/{term}", number) for term, number in terms.items() if number is not None)
        elif name not in _NOT_SCALARS and value is not None:
            yield f"{kind}/{name}", value


class Log:
    """The writer of a training run's metrics; usable as a context manager that closes it."""

    def __init__(self, run: RunDirectory, tensorboard: bool = False) -> None:
        """Prepare the log; nothing is written yet.

        Args:
            run: where to.
            tensorboard: write TensorBoard's event files too.

        Raises:
            ConfigError: they are asked for, and the package `tensorboard` is not installed.
        """
        self._run = run
        self._tensorboard = TensorBoardLog(run) if tensorboard else None

    def append(self, row: dict[str, Any]) -> None:
        """Add one row, with its `kind` and `step`.

        Raises:
            ChanasError: it cannot be written.
        """
        if self._tensorboard is not None:
            self._tensorboard.append(row)
        append_metrics(self._run, row)

    def cut(self, step: int) -> int:
        """Same as `cut_metrics`."""
        self.close()
        return cut_metrics(self._run, step)

    def close(self) -> None:
        """Write out what is held back; `append` may still follow."""
        if self._tensorboard is not None:
            self._tensorboard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
