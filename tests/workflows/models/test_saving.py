"""The place of a tuned network: only an earlier one is replaced, and nothing that a user may miss."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from chanas.bundle.tuned import TunedNetwork
from chanas.core.usage import HERE, Place, Usage
from chanas.errors import ConfigError
from chanas.workflows.models.saving import check_place, default_folder, write_folder


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


@pytest.mark.parametrize(
    ("usage", "shapes", "name"),
    [
        (HERE, {}, "net"),
        (Usage(threads=16), {}, "net-16t"),
        (HERE, {"x": (1, 3, 64, 64)}, "net-1x3x64x64"),
        (Usage(threads=2), {"y": (1, 7), "x": (1, 3, 8, 8)}, "net-1x3x8x8-1x7-2t"),
        (Usage(place=Place("host:1", "pi4")), {}, "net@pi4"),
        (Usage("raspberry-pi-4", 4), {}, "net-raspberry-pi-4-4t"),
    ],
)
def test_each_use_of_a_device_and_each_shape_has_a_folder(
    usage: Usage, shapes: dict[str, tuple[int, ...]], name: str
) -> None:
    assert default_folder(Path("tuned"), "net", usage, shapes) == Path("tuned") / name


class Made:
    """A compiled program without parameters."""

    parameters: tuple[()] = ()

    def to_json(self) -> str:
        return "{}"


def test_another_network_of_the_same_file_name_is_kept_and_the_same_one_replaced(
    tuned_folder: Path, tmp_path: Path
) -> None:
    document = TunedNetwork.open(tuned_folder).document
    again = {**document, "run_id": "again"}
    retrained = {**document, "origin": {**document["origin"], "sha256": "f" * 64}}
    smaller = {**retrained, "inputs": [{**i, "shape": [1, *i["shape"][1:-1], 1]} for i in document["inputs"]]}
    folder, made = tmp_path / "net", cast(Any, Made())
    told = [write_folder(folder, b"code", made, network) for network in (document, again, retrained, smaller)]
    assert told[0] == ""
    assert " before" in told[1]
    assert [str(folder.with_name(f"net.{n}")) in text for n, text in ((1, told[2]), (2, told[3]))] == [True, True]
    hashes = [TunedNetwork.open(tmp_path / name).document["origin"]["sha256"] for name in ("net.1", "net.2", "net")]
    assert hashes == [document["origin"]["sha256"], "f" * 64, "f" * 64]


def with_latency(document: dict[str, Any], run_id: str, seconds: float) -> dict[str, Any]:
    return {**document, "run_id": run_id, "measured": {**document["measured"], "latency_s": seconds}}


def test_a_first_result_leaves_a_faster_one_of_an_earlier_tuning_and_the_last_one_replaces_it(
    tuned_folder: Path, tmp_path: Path
) -> None:
    document, folder, made = TunedNetwork.open(tuned_folder).document, tmp_path / "net", cast(Any, Made())
    write_folder(folder, b"code", made, with_latency(document, "earlier", 2.0))
    for keep_faster, seconds, there in ((True, 3.0, 2.0), (True, 1.0, 1.0), (True, 1.5, 1.5), (False, 4.0, 4.0)):
        write_folder(folder, b"code", made, with_latency(document, "now", seconds), keep_faster=keep_faster)
        assert TunedNetwork.open(folder).document["measured"]["latency_s"] == there
    assert [p.name for p in tmp_path.iterdir()] == ["net"]


@pytest.mark.parametrize("run", ["net", "net/run"])
def test_a_run_directory_is_not_replaced_with_its_records(tmp_path: Path, run: str) -> None:
    with pytest.raises(ConfigError, match="would take the records"):
        check_place(tmp_path / "net", tmp_path / run)
    check_place(tmp_path / "net", tmp_path / "network")


def test_a_place_that_cannot_be_written_is_told_before_the_tuning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is no folder that you may write to"):
        check_place(tmp_path / "file" / "deep" / "net")
