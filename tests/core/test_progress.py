"""Progress on a terminal and elsewhere; the clock is made up."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import pytest
from tqdm import tqdm

import chanas
from chanas.core.progress import PlainLines, named_wait, progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_pipe_gets_a_plain_line_every_half_minute_and_one_at_the_end(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar(540, "supernet", "step", clock=clock) as bar:
        for step in range(540):
            clock.now_s += 0.25
            bar.set_postfix({"train_loss": f"{2 - step / 540:.3f}"}, refresh=False)
            bar.update()
    shown = capsys.readouterr().err
    assert shown.splitlines() == [
        "supernet: 0/540 step, 0 %",
        "supernet: 120/540 step, 22 %, 1:45 left, train_loss=1.780",
        "supernet: 240/540 step, 44 %, 1:15 left, train_loss=1.557",
        "supernet: 360/540 step, 67 %, 0:45 left, train_loss=1.335",
        "supernet: 480/540 step, 89 %, 0:15 left, train_loss=1.113",
        "supernet: 540/540 step, 100 %, after 2:15, train_loss=1.002",
    ]
    assert "\r" not in shown
    assert shown.endswith("\n")


def test_what_was_done_before_says_nothing_of_the_pace(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(1000, "supernet", "step", initial=900, clock=clock) as bar:
        clock.now_s += 40
        bar.update(40)
    assert "supernet: 940/1000 step, 94 %, 1:00 left\n" in capsys.readouterr().err


def test_a_message_stands_between_the_lines_and_repeats_none(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(4, "timing blocks", "block", clock=clock) as bar:
        bar.update()
        tqdm.write("back to step 1", file=sys.stderr)
        clock.now_s += 3700
        bar.update()
        bar.set_postfix_str("conv")
    assert capsys.readouterr().err.splitlines() == [
        "timing blocks: 0/4 block, 0 %",
        "back to step 1",
        "timing blocks: 2/4 block, 50 %, 1:01:40 left",
        "timing blocks: 2/4 block, 50 %, after 1:01:40, conv",
    ]


def test_bars_inside_each_other_and_ones_that_begin_again_have_lines_of_their_own(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar(2, "outer", "run", clock=clock) as outer:
        with progress_bar(3, "inner", "step", clock=clock) as inner:
            inner.update(2)
            inner.reset(3)
            inner.update(3)
        outer.update(2)
    assert capsys.readouterr().err.splitlines() == [
        "outer: 0/2 run, 0 %",
        "inner: 0/3 step, 0 %",
        "inner: 3/3 step, 100 %, after 0:00",
        "outer: 2/2 run, 100 %, after 0:00",
    ]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_that_is_not_wanted_shows_nothing(clock: Clock, is_terminal: bool) -> None:
    stream = Terminal() if is_terminal else io.StringIO()
    with progress_bar(3, "supernet", "step", enabled=False, stream=stream, clock=clock) as bar:
        clock.now_s += 100
        bar.set_postfix_str("loss")
        bar.update(3)
    assert stream.getvalue() == ""


def test_a_terminal_gets_tqdms_own_bar() -> None:
    stream = Terminal()
    with progress_bar(3, "supernet", "step", stream=stream) as bar:
        assert not isinstance(bar, PlainLines)
        bar.update(3)
    assert stream.getvalue().startswith("\rsupernet:   0%|")
    assert "3/3 [" in stream.getvalue()


@pytest.mark.parametrize("initial", [0, 119, 123])
@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "pipe"])
def test_no_bar_shows_more_than_all_or_a_negative_rest(clock: Clock, stream: io.StringIO, initial: int) -> None:
    """More was known than the job had been counted with, and more is done than was expected."""
    stream.seek(0)
    stream.truncate()
    with progress_bar(120, "evaluate", "net", initial=initial, stream=stream, clock=clock) as bar:
        bar.mininterval = 0
        for _ in range(8):
            clock.now_s += 40
            bar.update()
        bar.expect(2)
        assert (bar.n, bar.total) == (initial + 8, initial + 10)
        clock.now_s += 40
        bar.update(4)
    shown = stream.getvalue()
    shares = [int(found) for found in re.findall(r"(\d+) ?%", shown)]
    assert shares
    assert max(shares) <= 100
    assert not re.search(r"-\d", shown)


def test_a_long_wait_without_a_bar_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with named_wait("compiling the library", after_s=0.0), named_wait("not this", enabled=False, after_s=0.0):
        time.sleep(0.2)
    with named_wait("nor this, which takes no time", after_s=60.0):
        pass
    assert capsys.readouterr() == ("", "compiling the library …\n")


def test_all_bars_of_the_package_are_these() -> None:
    """None is a bare tqdm, whose figures may pass its total."""
    package = Path(chanas.__file__).parent
    pattern = re.compile(r"\b(tqdm|trange)\(")
    found = [path.name for path in package.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))]
    assert found == []
