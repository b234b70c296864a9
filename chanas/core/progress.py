"""Progress of long jobs: a bar on a terminal, a plain line now and then elsewhere (a pipe, a log file, CI)."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, Self

from tqdm import tqdm

from chanas import interrupts
from chanas.core.units import format_duration

if TYPE_CHECKING:
    _Tqdm = tqdm[Any]
else:
    _Tqdm = tqdm

INTERVAL_S = 30.0


def progress_bar(
    total: int,
    desc: str,
    unit: str,
    enabled: bool = True,
    initial: int = 0,
    stream: IO[str] | None = None,
    clock: Callable[[], float] = monotonic,
    keeps: bool = False,
) -> ProgressBar:
    """A bar, of which `update`, `expect`, `set_postfix`, `reset` and `close` are used; it closes as a context.

    Args:
        total: number of `unit`s of the whole job; it grows where more are done.
        desc: name of the job.
        enabled: show anything at all.
        initial: how many of them were done before.
        stream: shows it; standard error by default.
        clock: tells seconds, for plain lines.
        keeps: what it counts is still done when the job is interrupted.
    """
    stream = stream or sys.stderr
    options: dict[str, Any] = {
        "total": max(total, initial),
        "desc": desc,
        "unit": unit,
        "initial": initial,
        "file": stream,
        "disable": not enabled,
        "keeps": keeps,
    }
    return ProgressBar(**options) if stream.isatty() else PlainLines(clock, **options)


def announce(lines: Iterable[str]) -> None:
    """Print lines on standard error, above the bars that are shown there."""
    for line in lines:
        tqdm.write(line, file=sys.stderr)


@contextlib.contextmanager
def named_wait(text: str, enabled: bool = True, after_s: float = 2.0) -> Iterator[None]:
    """Name a wait that no bar can show: a line on standard error, between the bars, when the body takes longer than
    `after_s`.

    Args:
        text: what is done, such as `compiling the library`.
        enabled: show anything at all.
    """
    timer = threading.Timer(after_s, tqdm.write, [f"{text} …"], {"file": sys.stderr})
    timer.daemon = True
    if enabled:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


class ProgressBar(_Tqdm):
    """A bar on a terminal."""

    def __init__(self, keeps: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self._keeps, self._keeping = keeps and not self.disable, contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self._keeps:
            self._keeping.enter_context(interrupts.keeping(lambda: f"{self.n} of {self.total} {self.unit}s"))
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._keeping.__exit__(*raised)
        super().__exit__(*raised)

    def update(self, n: float | None = 1) -> bool | None:
        """Count `n` more; returns True where that was shown. No bar is ever more than full: its total grows."""
        done = self.n + (n or 0)
        if self.total is not None and done > self.total:
            self.total = done
        return super().update(n)

    def expect(self, num_left: int) -> None:
        """Correct the total: so many units are left to do."""
        self.total = self.n + num_left


class PlainLines(ProgressBar):
    """A bar that prints a line of its own at its beginning, every `INTERVAL_S` and at its end; no line is
    overwritten."""

    def __init__(self, clock: Callable[[], float], **options: Any) -> None:
        super().__init__(**options, delay=math.inf)  # tqdm itself shows nothing
        self._clock = clock
        self._start_s = self._shown_s = clock()
        if not self.disable:
            self._show("")

    def update(self, n: float | None = 1) -> bool | None:
        """Count `n` more; returns True where that was shown."""
        super().update(n)
        return None if self.disable else self._show_when_due()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show what is due; called by tqdm after messages and new postfixes."""
        self._show_when_due()

    def reset(self, total: float | None = None) -> None:
        """Begin again."""
        self._start_s = self._shown_s = self._clock()
        super().reset(total)

    def clear(self, nolock: bool = False) -> None:
        """Do nothing: lines stay."""

    def close(self) -> None:
        """Show the last line."""
        if not self.disable:
            self._show(f"after {format_duration(self._clock() - self._start_s)}")
        super().close()

    def _show_when_due(self) -> bool:
        now_s = self._clock()
        if now_s - self._shown_s < INTERVAL_S:
            return False
        self._shown_s = now_s
        num_done = self.n - self.initial
        rest_s = (now_s - self._start_s) / num_done * ((self.total or 0) - self.n) if num_done > 0 else None
        self._show("" if rest_s is None else f"{format_duration(rest_s)} left")
        return True

    def _show(self, duration: str) -> None:
        share = f"{self.n / self.total:.0%}".replace("%", " %") if self.total else ""
        facts = [f"{self.n}/{self.total} {self.unit}", share, duration, str(self.postfix or "")]
        self.fp.write(f"{self.desc.removesuffix(': ')}: {', '.join(filter(None, facts))}\n")
        self.fp.flush()
