"""Importing TVM without PyTorch: its runtime imports torch where it finds it, which costs seconds and 600 MB that
neither a worker process nor a user who classifies images has any use for."""

from __future__ import annotations

import contextlib
import importlib.abc
import sys
from collections.abc import Iterator
from typing import Any


class _HideTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "torch" or fullname.startswith("torch."):
            raise ModuleNotFoundError(f"{fullname} is hidden while TVM is imported", name=fullname)


def hide_torch() -> None:
    """Make torch impossible to import in this process from now on."""
    sys.meta_path.insert(0, _HideTorch())


@contextlib.contextmanager
def torch_hidden() -> Iterator[None]:
    """Hide torch inside the body, so that TVM's first import leaves it alone; nothing is done where torch is loaded."""
    if "torch" in sys.modules or "tvm" in sys.modules:
        yield
        return
    finder = _HideTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
