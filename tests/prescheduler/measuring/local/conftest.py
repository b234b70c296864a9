"""How workers start and end: here they are processes of their own from the beginning."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from chanas.prescheduler.measuring.local import worker_process


@pytest.fixture(scope="module", autouse=True)
def real_workers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "subprocess", subprocess)
        yield
