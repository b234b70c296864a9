"""A command as a process: its streams, its signals, and the one line at its end."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from chanas import interrupts
from chanas.commands.program import program
from chanas.errors import ChanasError, describe_file_error, printable

# Commands of which something is kept when they are interrupted, and which the same command continues.
CONTINUED = frozenset(
    {
        ("ablate",),
        ("demo",),
        ("finetune",),
        ("jobs", "run"),
        ("lut", "adapt"),
        ("lut", "fill"),
        ("prescheduler",),
        ("search",),
        ("sweep",),
        ("sweep", "run"),
        ("train-supernet",),
        ("tune",),
    }
)
# Commands that run until they are stopped.
_SERVERS = frozenset({("device", "serve"), ("serve",)})
_OVERWRITE = "--overwrite"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line: an expected error is one line and exit code 1, Ctrl-C is 130, SIGTERM 143.

    Args:
        arguments: without the program's name; those of this process by default, whose signals and streams are then
            handled, too.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")  # damaged tags; what matters is an error or a remark
    given = list(sys.argv[1:] if arguments is None else arguments)
    end = given.index("--") if "--" in given else len(given)
    debug = "--debug" in given[:end]  # behind a command, too
    try:
        if arguments is None and threading.current_thread() is threading.main_thread():
            _open_streams()
            sys.unraisablehook = _quiet_interrupts
            interrupts.listen(lambda number: _say(_farewell(number, given, in_time=False)))
        code = _run([a for a in given[:end] if a != "--debug"] + given[end:], debug)
        sys.stdout.flush()
        sys.exit(code)
    except KeyboardInterrupt as interrupt:
        number = getattr(interrupt, "number", signal.SIGINT)
        _say(_farewell(number, given, in_time=True))
        sys.exit(128 + number)
    except ChanasError as error:
        if debug:
            raise
        _say(f"chanas: error: {printable(error)}")
        sys.exit(1)
    except OSError as error:  # of a file, such as one whose name no file system takes
        if debug or error.filename is None:
            raise
        _say(f"chanas: error: {printable(describe_file_error(error))}")
        sys.exit(1)


def _run(arguments: list[str], debug: bool) -> int:
    """Run a command; returns its exit code."""
    import typer

    from chanas.commands.main import command

    try:
        # not `main` of typer's, which takes what is raised for its own
        with command().make_context("chanas", arguments) as context:
            return command().invoke(context) or 0
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort as stop:
        raise KeyboardInterrupt from stop
    except Exception as error:
        if debug or not hasattr(error, "format_message"):
            raise
        message = error.format_message()  # the help itself, for a command that needs another one after it
        is_help = message.startswith("Usage:")
        _say(message if is_help else f"chanas: {message} Try 'chanas --help'.")
        return 2


# ---- the end --------------------------------------------------------------------------------------------------------
def _farewell(number: int, arguments: list[str], *, in_time: bool) -> str:
    """The line about an interruption: what is kept, and the command that continues."""
    path: tuple[str, ...] = ()
    for word in (word for word in arguments if not word.startswith("-")):
        if (*path, word) in CONTINUED | _SERVERS or any(known[: len(path) + 1] == (*path, word) for known in CONTINUED):
            path = (*path, word)
        else:
            break
    kept = interrupts.kept()
    if kept is not None:  # what replaced another run is continued, not replaced in turn
        arguments = [word for word in arguments if word != _OVERWRITE]
    words = program()
    line = shlex.join(words if words[0].endswith("torchrun") else [*words, *arguments])
    how = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    if path in _SERVERS:
        return f"chanas: stopped; start it again with: {line}"
    if path not in CONTINUED:
        return f"chanas: {how}, nothing is kept; begin again with: {line}"
    what = f"{kept} are kept" if kept is not None and in_time else "what was measured or saved is kept"
    return f"chanas: {how}, {what}; continue with: {line}"


def _say(line: str) -> None:
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0" and "continue with" in line:
        return  # the first of several processes speaks for them
    with contextlib.suppress(OSError):
        start = "\n" if sys.stderr.isatty() and "; " in line and " with: " in line else ""  # after ^C, or half a bar
        print(f"{start}{line}", file=sys.stderr, flush=True)


def _quiet_interrupts(raised: Any) -> None:
    """An interruption that comes where none can be raised is no news: the process ends nevertheless."""
    if not isinstance(raised.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(raised)


# ---- streams --------------------------------------------------------------------------------------------------------
def _open_streams() -> None:
    """Give the process its three streams, whatever it was started with: a file that is opened later must not get the
    number of a closed one, a result that cannot be written is an error, and a message that cannot is none."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest free number; whoever writes to 1 is told
    results, messages = (io.BufferedWriter(io.FileIO(number, "wb", closefd=False)) for number in (1, 2))
    old = sys.stdout or io.TextIOWrapper(io.BytesIO())
    # names of files as they came, whatever their bytes
    sys.stdout = _Results(results, old.encoding, "surrogateescape", line_buffering=old.isatty())
    sys.stderr = _Messages(messages, old.encoding, "backslashreplace", line_buffering=True)


class _Results(io.TextIOWrapper):
    """Standard output.

    Raises:
        ChanasError: it cannot be written: a full disk, a closed pipe. Later writes go nowhere.
    """

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            raise self._failure(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> ChanasError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # what is left in the buffer is written at the end of the process
        os.close(nowhere)
        return ChanasError(f"standard output cannot be written: {error.strerror or error}")


class _Messages(io.TextIOWrapper):
    """Standard error: lines and bars that cannot be shown are lost, and the job goes on."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            return super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()
