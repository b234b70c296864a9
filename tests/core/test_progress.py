"""Progress on a terminal and elsewhere; the clock is made up."""

from __future__ import annotations

import io
import sys

import pytest
from tqdm import tqdm

from chanas.core.progress import PlainLines, progress_bar


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
    assert capsys.readouterr().err == "inner: 3/3 step, 100 %, after 0:00\nouter: 2/2 run, 100 %, after 0:00\n"


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
