"""Networks that a search hands over are compiled and timed for real, once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chanas.prescheduler.tables import networks


@pytest.fixture(scope="module", autouse=True)
def in_one_process() -> Iterator[None]:
    """Networks are timed in one process instead of three to five, each of which starts anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "_MOST_PROCESSES", 1)
        yield
