"""The place of a tuned network: only an earlier one is replaced, and nothing that a user may miss."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chanas.errors import ConfigError
from chanas.workflows.models.saving import check_place, default_folder


def test_a_free_place_an_empty_folder_and_an_earlier_network_are_taken(tuned_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    earlier = shutil.copytree(tuned_folder, tmp_path / "earlier")
    for folder in (tmp_path / "new" / "net", tmp_path / "empty", Path(earlier), Path("a relative one")):
        check_place(folder, tmp_path / "run")


def test_what_is_no_tuned_network_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for place in (tmp_path, tmp_path / "thesis.tex", tmp_path / "link"):
        with pytest.raises(ConfigError, match="was not made by `chanas tune`"):
            check_place(place)


def test_networks_for_other_numbers_of_threads_lie_beside_each_other() -> None:
    names = [default_folder(Path("tuned"), "net", num_threads).as_posix() for num_threads in (1, 2, 16)]
    assert names == ["tuned/net", "tuned/net-2t", "tuned/net-16t"]


@pytest.mark.parametrize("run", ["net", "net/run"])
def test_a_run_directory_is_not_replaced_with_its_records(tmp_path: Path, run: str) -> None:
    with pytest.raises(ConfigError, match="would take the records"):
        check_place(tmp_path / "net", tmp_path / run)
    check_place(tmp_path / "net", tmp_path / "network")


def test_a_place_that_cannot_be_written_is_told_before_the_tuning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is no folder that you may write to"):
        check_place(tmp_path / "file" / "deep" / "net")
