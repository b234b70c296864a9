"""chanas/measuring/remote/link.py: what is sent to a device, and what stays there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chanas.core.codec import to_json
from chanas.errors import MeasureError
from chanas.measuring.messages import Measure, RequestError, WorkerError
from chanas.measuring.remote.link import Link, Uploads


class Device:
    """What lies on it; `num_sent` counts uploads."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.files: dict[str, bytes] = {}
        self.num_sent = 0
        self.uploads = Uploads(self._upload, self.files.pop, max_bytes)

    def _upload(self, path: Path, name: str) -> None:
        self.files[name] = path.read_bytes()
        self.num_sent += 1


@pytest.fixture
def device() -> Device:
    return Device()


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_the_same_content_is_sent_once(device: Device, tmp_path: Path) -> None:
    one, other = written(tmp_path / "a.so", b"code"), written(tmp_path / "b.so", b"code")
    assert device.uploads.send(one) == device.uploads.send(other) == device.uploads.send(one)
    assert device.num_sent == 1
    assert list(device.files.values()) == [b"code"]


def test_a_file_that_changed_is_sent_again(device: Device, tmp_path: Path) -> None:
    first = device.uploads.send(written(tmp_path / "a.npz", b"one"))
    second = device.uploads.send(written(tmp_path / "a.npz", b"another"))
    assert device.files == {first: b"one", second: b"another"}


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path) -> None:
    device = Device(max_bytes=25)
    names = [device.uploads.send(written(tmp_path / f"{i}.so", bytes([i]) * 10)) for i in range(3)]
    device.uploads.send(tmp_path / "0.so")
    device.uploads.make_room(2)
    assert set(device.files) == {names[0], names[2]}
    assert device.uploads.send(tmp_path / "1.so") == names[1]
    assert device.num_sent == 4


@pytest.mark.parametrize(("max_bytes", "num_sent"), [(60, 6), (40, 18)])
def test_what_is_timed_round_after_round_is_sent_once_where_all_of_it_fits(
    tmp_path: Path, max_bytes: int, num_sent: int
) -> None:
    device = Device(max_bytes)
    files = [written(tmp_path / f"{i}.so", bytes([i]) * 10) for i in range(6)]
    for _ in range(3):
        for library, case in zip(files[::2], files[1::2], strict=True):
            device.uploads.send(library)
            device.uploads.send(case)
            device.uploads.make_room(2)
    assert device.num_sent == num_sent


def test_files_of_one_timing_stay_however_large(tmp_path: Path) -> None:
    device = Device(max_bytes=5)
    names = [device.uploads.send(written(tmp_path / f"{i}.so", bytes([i]) * 10)) for i in range(4)]
    device.uploads.make_room(3)
    assert set(device.files) == set(names[1:])


def test_a_folder_of_libraries_is_sent_file_by_file(device: Device, tmp_path: Path) -> None:
    folder = tmp_path / "contenders"
    folder.mkdir()
    for name in ("0.so", "1.so", "0.o"):
        written(folder / name, name.encode())
    case = written(tmp_path / "case.npz", b"case")
    sent = dict(Link._sent(device.uploads, Measure(library=folder, case=case, num=2)))
    assert sent["library"]["is_folder"]
    assert {n: device.files[u] for n, u in sent["library"]["names"].items()} == {"0.so": b"0.so", "1.so": b"1.so"}
    assert device.files[sent["case"]] == b"case"


def test_an_error_of_the_device_keeps_its_class() -> None:
    error = WorkerError.of(MeasureError("a worker process could not start"))
    link = Link()
    link._functions = {"call": lambda _request: json.dumps({"error": to_json(error)})}
    with pytest.raises(RequestError) as caught:
        link._ask("call", {})
    assert caught.value.error == error
    assert caught.value.error.exception_class is MeasureError
