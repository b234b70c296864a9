"""chanas/service/archive.py: the same files are the same bytes, and nothing is written elsewhere."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from chanas.errors import ServiceError
from chanas.service.archive import pack, unpack


def test_what_was_packed_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"c" * 3000)
    (tmp_path / "a" / "d").write_bytes(b"")
    first = pack(tmp_path / "a", tmp_path / "1.tar")
    assert first == pack(tmp_path / "a", tmp_path / "2.tar")
    with open(tmp_path / "1.tar", "rb") as file:
        unpack(file, tmp_path / "out")
    assert {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*")} == {"b", "b/c", "d"}
    assert (tmp_path / "out" / "b" / "c").read_bytes() == b"c" * 3000


@pytest.mark.parametrize(
    ("name", "kind"),
    [("../evil", tarfile.REGTYPE), ("/evil", tarfile.REGTYPE), ("link", tarfile.SYMTYPE), ("pipe", tarfile.FIFOTYPE)],
)
def test_whatever_is_no_plain_file_below_it_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = kind, "/etc/passwd"
        tar.addfile(entry)
    archive.seek(0)
    with pytest.raises(ServiceError, match="no plain file"):
        unpack(archive, tmp_path / "inside" / "out")
    assert not (tmp_path / "inside" / "out").exists()
    assert not (tmp_path / "inside" / "evil").exists()


def test_an_archive_that_is_cut_short_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"b" * 5000)
    pack(tmp_path / "a", tmp_path / "1.tar")
    with pytest.raises(ServiceError, match="damaged"):
        unpack(io.BytesIO((tmp_path / "1.tar").read_bytes()[:3000]), tmp_path / "out")
    assert not (tmp_path / "out").exists()
