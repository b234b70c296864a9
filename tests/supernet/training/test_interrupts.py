"""Signals wait for the end of the block, and then mean what they always mean."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from chanas.supernet.training.interrupts import DeferredSignals


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_is_noted_and_raised_when_asked(number: signal.Signals, raised: type[BaseException]) -> None:
    with DeferredSignals() as signals:
        signal.raise_signal(number)
        assert signals.received is number
        with pytest.raises(raised):
            signals.raise_received()


@pytest.fixture
def default_sigint() -> Iterator[None]:
    """Ctrl-C as in a terminal: a shell that starts the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_sigint")
def test_a_second_ctrl_c_acts_at_once() -> None:
    with DeferredSignals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_where_a_launcher_repeats_signals_a_second_one_does_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with DeferredSignals(once=True) as signals:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert signals.received is signal.SIGINT
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with DeferredSignals():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_nothing_noted_means_nothing_raised() -> None:
    with DeferredSignals() as signals:
        signals.raise_received()
    assert signals.received is None


def test_other_threads_leave_signals_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def enter() -> None:
        with DeferredSignals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
