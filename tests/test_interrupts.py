"""chanas/interrupts.py and the end of a command: in time, with one line, and with the processes that it started."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from chanas import interrupts
from chanas.commands.main import command
from chanas.commands.process import CONTINUED
from chanas.core.progress import progress_bar

ROOT = Path(__file__).resolve().parents[1]

# A command whose work is planted, which calls `works` where it may be interrupted.
PLANTED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from chanas import workflows
def works():
    print("works", flush=True)
def work(*_, **__):
    {work}
workflows.{function} = work
sys.argv = ["chanas", *{arguments}]
from chanas.__main__ import main
main()
"""


def start(work: str, arguments: Sequence[str] = ("report",), function: str = "report") -> subprocess.Popen[str]:
    code = PLANTED.format(work=work, arguments=list(arguments), function=function)
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "works\n"
    return process


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
    """Exit code and messages of a process that gets a signal."""
    process.send_signal(number)
    messages = process.communicate(timeout=60)[1]
    return process.returncode, messages


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")])
def test_a_signal_ends_a_command_with_one_line(number: signal.Signals, word: str) -> None:
    code, said = end(start("works(); time.sleep(600)"), number)
    assert (code, said) == (128 + number, f"chanas: {word}, nothing is kept; begin again with: chanas report\n")


SWALLOWS = """
    while True:
        try:
            works()
            time.sleep(600)
        except KeyboardInterrupt:
            pass"""


@pytest.mark.parametrize(
    "work",
    [
        SWALLOWS,
        "works(); import threading; threading.Thread(target=time.sleep, args=(600,)).start(); raise KeyboardInterrupt",
    ],
    ids=["swallowed", "threads"],
)
def test_what_does_not_answer_is_ended(work: str) -> None:
    code, said = end(start(work))
    assert code == 130
    assert said.count("interrupted") >= 1


def test_a_second_signal_ends_at_once_what_is_patient() -> None:
    work = (
        "\n    from chanas import interrupts\n    patience = interrupts.patience()\n    patience.__enter__()" + SWALLOWS
    )
    process = start(work)
    process.send_signal(signal.SIGINT)
    time.sleep(interrupts.GRACE_S + 0.5)
    assert process.poll() is None
    assert end(process)[0] == 130


def test_after_patience_there_is_time_to_end_with_what_is_kept() -> None:
    """What is patient may take longer than the grace; what ends after it is no less in time."""
    work = """
    from chanas import interrupts
    with interrupts.keeping(lambda: "3 of 5 steps"):
        try:
            with interrupts.patience():
                try:
                    works()
                    time.sleep(600)
                finally:
                    time.sleep(interrupts.GRACE_S + 0.5)
        finally:
            time.sleep(0.5)"""
    code, said = end(start(work, ["train-supernet"], "train_supernet"))
    assert (code, said) == (130, "chanas: interrupted, 3 of 5 steps are kept; continue with: chanas train-supernet\n")


def test_processes_that_were_started_end_too() -> None:
    work = "\n    import subprocess\n    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    work += SWALLOWS.replace("            works()", "            works(); print(child.pid, flush=True)")
    process = start(work)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert end(process)[0] == 130
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_an_import_is_interrupted_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "print('works', flush=True)\nimport time\n"
        "try:\n    time.sleep(600)\nexcept BaseException:\n    raise ImportError('half') from None\n"
    )
    process = start(f"sys.path.insert(0, {str(tmp_path)!r}); import slow")
    code, said = end(process)
    assert (code, said.count("\n")) == (130, 1)


# ---- the line that continues ----------------------------------------------------------------------------------------
BAR = """
    from chanas.core.progress import progress_bar
    with progress_bar(300, 'supernet', 'step', keeps={keeps}) as bar:
        bar.update(87)
        works()
        time.sleep(600)"""


def test_the_line_is_the_command_itself_with_what_is_kept() -> None:
    arguments = ["train-supernet", "--run", "a run", "--seed", "3", "--overwrite"]
    code, said = end(start(BAR.format(keeps=True), arguments, "train_supernet"))
    assert code == 130
    line = said.splitlines()[-1]
    assert line.startswith("chanas: interrupted, 87 of 300 steps are kept; continue with: ")
    assert shlex.split(line.partition("with: ")[2]) == ["chanas", *arguments[:-1]]  # what was begun is not begun anew


def test_before_anything_is_kept_the_command_stays_whole() -> None:
    arguments = ["train-supernet", "--overwrite"]
    said = end(start("works(); time.sleep(600)", arguments, "train_supernet"))[1]
    assert said.endswith("continue with: chanas train-supernet --overwrite\n")


def test_what_a_bar_counts_is_kept_where_it_says_so() -> None:
    for keeps, kept in ((True, "2 of 5 trials"), (False, None)):
        with pytest.raises(KeyboardInterrupt), progress_bar(5, "tuning", "trial", keeps=keeps) as bar:
            bar.update(2)
            raise KeyboardInterrupt
        assert interrupts.kept() == kept
        with progress_bar(1, "next", "trial", keeps=True):
            pass
        assert interrupts.kept() is None


def test_commands_that_are_continued_are_commands() -> None:
    for path in CONTINUED:
        found = command()
        for name in path:
            found = found.commands[name]  # type: ignore[attr-defined, assignment]


# ---- streams --------------------------------------------------------------------------------------------------------
COMMANDS = ("--version", "--help", "target list", "target show cpu --json", "train-supernet --help", "lut show --help")


@pytest.mark.parametrize("arguments", COMMANDS)
@pytest.mark.parametrize("where", [">/dev/full", ">&-", "| true"], ids=["full", "closed", "pipe"])
def test_a_result_that_cannot_be_written_is_one_line(arguments: str, where: str, tmp_path: Path) -> None:
    chanas = f"{sys.executable} -m chanas {arguments}"
    line = f"(sleep 0.3; {chanas}; echo code $? >&2) {where}" if where.startswith("|") else f"{chanas} {where}"
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    said = done.stderr.removesuffix("code 1\n") if where.startswith("|") else done.stderr
    assert re.fullmatch(r"chanas: error: standard output cannot be written: .*\n", said)
    assert where.startswith("|") or done.returncode == 1


@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-", "0>&- 2>&-"])
def test_messages_that_cannot_be_written_disturb_nothing(where: str, tmp_path: Path) -> None:
    code = (
        "from chanas.commands import process; process._open_streams(); from chanas.core.progress import progress_bar\n"
    )
    code += "with progress_bar(2, 'a', 'b') as bar:\n    bar.update(2)\nfile = open('x', 'w'); print(file.fileno() > 2)"
    line = f"{sys.executable} -c {shlex.quote(code)} {where}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "True\n")
