"""Signals wait for the end of the block, and then mean what they always mean."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from chanas.interrupts import SIGNALS, Interrupted
from chanas.supernet.training.interrupts import DeferredSignals, Ended


@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_raised_when_asked(number: signal.Signals) -> None:
    with DeferredSignals() as signals:
        signal.raise_signal(number)
        assert signals.received is number
        with pytest.raises(Interrupted) as caught:
            signals.raise_received()
    assert caught.value.number is number


@pytest.mark.usefixtures("default_signals")
def test_a_block_that_may_be_cut_is_left_at_once_or_in_time() -> None:
    for within_s in (0.0, 0.01):
        with DeferredSignals() as signals, pytest.raises(Ended), signals.cut_in(within_s):
            signal.raise_signal(signal.SIGINT)
            time.sleep(30)


@pytest.mark.usefixtures("default_signals")
def test_a_block_that_ends_in_time_is_not_cut() -> None:
    with DeferredSignals() as signals:
        with signals.cut_in(0.01):
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)
        with pytest.raises(Ended), signals.cut_in():
            pass


@pytest.mark.usefixtures("default_signals")
def test_a_second_ctrl_c_acts_at_once() -> None:
    with DeferredSignals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("default_signals")
def test_where_a_launcher_repeats_signals_a_second_one_does_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with DeferredSignals(once=True) as signals:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert signals.received is signal.SIGINT
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.usefixtures("default_signals")
def test_the_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with DeferredSignals():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_nothing_noted_means_nothing_raised() -> None:
    with DeferredSignals() as signals:
        signals.raise_received()
    assert signals.received is None


@pytest.mark.usefixtures("default_signals")
def test_other_threads_leave_signals_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def enter() -> None:
        with DeferredSignals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
