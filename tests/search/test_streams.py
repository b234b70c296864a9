"""Streams of random numbers of the search: each step has its own, so that its draws don't shift another's."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections import Counter

import chanas.search

_FIRST = 1_000_000


def streams() -> list[int]:
    """Every stream that a module of the search names: in the modules' own constants, which lie above all other ones."""
    names = [info.name for info in pkgutil.walk_packages(chanas.search.__path__, "chanas.search.")]
    found = []
    for name in names:
        module = importlib.import_module(name)
        text = inspect.getsource(module)
        constants = {k: v for k, v in vars(module).items() if type(v) is int and v > _FIRST}
        found += [v for v in constants.values() if f"{v:_}" in text]  # not those that it imports
    return found


def test_no_two_steps_share_a_stream() -> None:
    assert len(streams()) >= 11
    assert [stream for stream, count in Counter(streams()).items() if count > 1] == []
