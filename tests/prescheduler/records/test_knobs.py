"""prescheduler/records/knobs.py: files of knobs kept next to the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from chanas.errors import ConfigError
from chanas.files.run import RunDirectory
from chanas.files.writing import file_digest
from chanas.prescheduler.records.knobs import describe_knobs, keep_knobs, kept_knobs


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text("pointwise: {auto_unroll: [0, 16]}\n")
    return path


def test_a_file_is_kept_under_its_name_and_hash(file: Path, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    kept = keep_knobs(file, run)
    assert kept == tmp_path / "run" / "knobs" / f"mine-{file_digest(file)}.yaml"
    assert kept.read_bytes() == file.read_bytes()
    assert describe_knobs(file) == {"name": "mine.yaml", "hash": file_digest(file)}
    assert kept_knobs(run, file_digest(file)) == kept


def test_a_content_is_kept_once_and_another_one_beside_it(file: Path, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    first = keep_knobs(file, run)
    assert keep_knobs(file, run) == keep_knobs(first, run) == first
    file.write_text("pointwise: {rules: false}\n")
    assert keep_knobs(file, run) != first
    assert len(list(run.knobs.iterdir())) == 2


def test_a_copy_that_was_changed_is_not_taken(file: Path, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    digest = file_digest(file)
    keep_knobs(file, run).write_text("pointwise: {rules: false}\n")
    assert kept_knobs(run, digest) is None
    assert file_digest(keep_knobs(file, run)) == digest


def test_a_run_without_files_has_none(tmp_path: Path) -> None:
    assert kept_knobs(RunDirectory(tmp_path / "run"), "0" * 16) is None
    assert not (tmp_path / "run").exists()


def test_what_is_no_file_of_knobs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("pointwise: {colour: [1]}\n")
    for name in ("wrong.yaml", "gone.yaml"):
        with pytest.raises(ConfigError, match=name):
            describe_knobs(tmp_path / name)
