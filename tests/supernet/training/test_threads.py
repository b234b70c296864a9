"""The choice between one thread and all of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from chanas.supernet.training.threads import fastest_num_threads


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("fast", [1, 2])
def test_the_faster_number_is_chosen_and_set(fast: int) -> None:
    def step() -> None:
        time.sleep(0.0 if torch.get_num_threads() == fast else 0.02)

    assert fastest_num_threads(step, 2) == fast
    assert torch.get_num_threads() == fast


def test_one_thread_needs_no_rehearsal() -> None:
    def step() -> None:
        raise AssertionError("nothing to compare")

    assert fastest_num_threads(step, 1) == 1
