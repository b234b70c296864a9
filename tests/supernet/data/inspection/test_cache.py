"""What was read is known again while the file is the same, and a cache that cannot be used costs time alone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from chanas.supernet.data.image_source import UNKNOWN, stamps_of
from chanas.supernet.data.inspection import cache
from chanas.supernet.data.inspection.cache import PictureFacts, open_cache

FACTS = [PictureFacts(-5, 3, 4, 1, b"\0" * 24, "turned", None), PictureFacts(2**62, fault="is none")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "chanas"


@pytest.fixture
def stamps(tmp_path: Path) -> np.ndarray:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(b"x")
    return stamps_of(os.stat(file) for file in files)


def test_facts_come_back_in_another_process(folder: Path, stamps: np.ndarray) -> None:
    with open_cache() as opened:
        assert opened.known(stamps) == {}
        opened.keep(stamps, FACTS)
    with open_cache() as opened:
        assert opened.known(stamps) == dict(enumerate(FACTS))
        assert opened.known(stamps[1:]) == {0: FACTS[1]}
        assert opened.known(np.array([UNKNOWN])) == {}
        for column in range(5):
            changed = stamps.copy()
            changed[0, column] += 1
            assert list(opened.known(changed)) == [1]


def test_another_reader_reads_again(folder: Path, stamps: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_cache() as opened:
        opened.keep(stamps, FACTS)
    monkeypatch.setattr(cache, "_READER", "another")
    with open_cache() as opened:
        assert opened.known(stamps) == {}


def test_several_writers_lose_nothing(folder: Path, stamps: np.ndarray) -> None:
    with open_cache() as one, open_cache() as other:
        one.keep(stamps[:1], FACTS[:1])
        other.keep(stamps[1:], FACTS[1:])
        assert len(one.known(stamps)) == len(other.known(stamps)) == 2


def test_a_damaged_cache_begins_anew(folder: Path, stamps: np.ndarray) -> None:
    folder.mkdir()
    (folder / "pictures.sqlite").write_bytes(b"no database" * 1000)
    with open_cache() as opened:
        opened.keep(stamps, FACTS)
    with open_cache() as opened:
        assert len(opened.known(stamps)) == 2


def test_without_a_place_for_it_nothing_is_known(
    tmp_path: Path, stamps: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with open_cache() as opened:
        opened.keep(stamps, FACTS)
        assert opened.known(stamps) == {}
