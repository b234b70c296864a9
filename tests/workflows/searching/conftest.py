"""Networks that a search hands over are compiled and timed for real, once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chanas.prescheduler.tables import defaults, networks


@pytest.fixture(scope="module", autouse=True)
def in_one_process() -> Iterator[None]:
    """Networks are timed in one process instead of three to five, each of which starts anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "_MOST_PROCESSES", 1)
        yield


@pytest.fixture(scope="module", autouse=True)
def without_default_schedules(request: pytest.FixtureRequest) -> Iterator[None]:
    """Blocks are timed with default schedules in the tests of what is handed over alone."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.module.__name__.endswith("test_hand_over"):
            patch.setattr(defaults, "time_default_blocks", lambda *_, **__: {})
        yield
