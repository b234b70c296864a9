"""chanas/files/run.py: a file is there whole, or not at all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chanas.errors import ChanasError, CheckpointError
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest, read_json, replacing, replacing_folder, write_json


def names(folder: Path) -> set[str]:
    """All entries of a folder, hidden ones as well."""
    return {p.name for p in folder.iterdir()}


def test_a_run_directory_creates_nothing_by_itself(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    inside = [run.supernet, run.records, run.luts, run.lut("cpu"), run.search, run.bundle, run.report]
    assert all(p.is_relative_to(run.root) for p in inside)
    assert len(set(inside)) == len(inside)
    assert not run.root.exists()


# ---- files ----------------------------------------------------------------------------------------------------------
def test_a_file_takes_its_place_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file.txt"
    with replacing(file) as temporary:
        temporary.write_text("whole")
        assert not file.exists()
    assert file.read_text() == "whole"
    assert names(file.parent) == {"file.txt"}


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_file_leaves_the_old_one(tmp_path: Path, interruption: type[BaseException]) -> None:
    file = tmp_path / "file.txt"
    file.write_text("old")
    with pytest.raises(interruption), replacing(file) as temporary:
        temporary.write_text("ha")
        raise interruption
    assert file.read_text() == "old"
    assert names(tmp_path) == {"file.txt"}


def test_a_full_disk_is_one_error_and_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("old")
    with pytest.raises(ChanasError, match=r"cannot write .*file\.txt: No space left on device"), replacing(file):
        raise OSError(28, "No space left on device")
    assert file.read_text() == "old"
    assert names(tmp_path) == {"file.txt"}


@pytest.mark.parametrize("writer", [replacing, replacing_folder])
def test_a_place_that_cannot_be_written_is_one_error(tmp_path: Path, writer) -> None:
    obstacle = tmp_path / "file"
    obstacle.write_text("in the way of a folder")
    with pytest.raises(ChanasError, match="cannot write"), writer(obstacle / "inside"):
        pass
    assert obstacle.read_text() == "in the way of a folder"


# ---- folders --------------------------------------------------------------------------------------------------------
def test_a_folder_replaces_the_old_one_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    with replacing_folder(folder) as temporary:
        (temporary / "new.txt").write_text("new")
        assert names(folder) == {"old.txt"}
    assert names(folder) == {"new.txt"}
    assert names(tmp_path) == {"bundle"}


def test_everybody_may_read_what_is_in_a_new_folder(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "new") as temporary:
        (temporary / "part").mkdir(mode=0o700)
        for name in ("weights", "part/more"):
            (temporary / name).touch(mode=0o600)
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in (tmp_path / "new").rglob("*"))


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_folder_leaves_the_old_one(tmp_path: Path, interruption: type[BaseException]) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    with pytest.raises(interruption), replacing_folder(folder) as temporary:
        (temporary / "new.txt").write_text("new")
        raise interruption
    assert names(folder) == {"old.txt"}
    assert names(tmp_path) == {"bundle"}


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    rename = os.rename

    def fail_for_the_new_one(source: Path, destination: Path) -> None:
        if Path(source).suffix == ".tmp":
            raise OSError(5, "Input/output error")
        rename(source, destination)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail_for_the_new_one)
        with pytest.raises(ChanasError, match="Input/output error"), replacing_folder(folder):
            pass
    assert names(folder) == {"old.txt"}
    assert names(tmp_path) == {"bundle"}


def test_a_folder_replaces_a_file_or_a_link_and_leaves_its_target(tmp_path: Path) -> None:
    elsewhere, place = tmp_path / "elsewhere", tmp_path / "bundle"
    elsewhere.mkdir()
    place.symlink_to(elsewhere)
    with replacing_folder(place) as temporary:
        (temporary / "new.txt").write_text("new")
    assert not place.is_symlink()
    assert names(place) == {"new.txt"}
    assert names(tmp_path) == {"bundle", "elsewhere"}


def kill_amid(folder: Path, moment: str) -> None:
    """Replace a folder in a process that is killed in the body, between the renames, or before the old one goes."""
    code = f"""
import os, signal
from pathlib import Path
from chanas.files import writing
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
def die_between(old, new, rename=os.rename): rename(old, new) if str(new).endswith(".old") else die()
if {moment!r} == "renames": os.rename = die_between
if {moment!r} == "end": writing._remove = die
with writing.replacing_folder(Path({str(folder)!r})) as temporary:
    (temporary / "half.txt").touch()
    if {moment!r} == "body": die()
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("moment", ["body", "renames", "end"])
def test_what_a_killed_process_left_is_cleared_by_the_next(tmp_path: Path, moment: str) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "old.txt").touch()
    kill_amid(folder, moment)
    assert len(names(tmp_path)) > 1
    with pytest.raises(RuntimeError), replacing_folder(folder):
        assert names(folder) == ({"half.txt"} if moment == "end" else {"old.txt"})
        raise RuntimeError
    assert names(tmp_path) == {"bundle"}


def test_what_another_process_is_at_stays(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    with replacing_folder(folder) as first:
        with replacing_folder(folder) as second:
            (second / "second.txt").touch()
        (first / "first.txt").touch()
    assert names(folder) == {"first.txt"}
    assert names(tmp_path) == {"bundle"}


# ---- JSON and digests -----------------------------------------------------------------------------------------------
def test_json_is_written_with_sorted_keys_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    data = {"b": [1, 2.5, None], "a": {"µ": "é"}}
    write_json(file, data)
    assert read_json(file, "data") == data
    assert list(json.loads(file.read_text())) == ["a", "b"]
    assert file.read_text().endswith("}\n")


def test_a_number_that_json_lacks_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"latency_s": float("nan")})
    assert names(tmp_path) == set()


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe"])
def test_a_damaged_file_is_named_with_what_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lut.json"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"latency table .*lut\.json is cut short or damaged"):
        read_json(file, "latency table")


def test_a_missing_file_is_named_with_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"latency table .*lut\.json does not exist"):
        read_json(tmp_path / "lut.json", "latency table")


def test_a_folder_in_place_of_a_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read: Is a directory"):
        read_json(tmp_path, "latency table")


def test_a_digest_depends_on_every_byte(tmp_path: Path) -> None:
    first, second, same = (tmp_path / name for name in "abc")
    first.write_bytes(b"\0" * 3_000_000)
    second.write_bytes(b"\0" * 2_999_999 + b"\1")
    same.write_bytes(first.read_bytes())
    assert file_digest(first) == file_digest(same) != file_digest(second)
    assert len(file_digest(first)) == 16
