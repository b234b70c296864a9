"""A folder gives its images and counts all else; nothing but plain files is opened, and links end."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from PIL import Image

from chanas.errors import DataError
from chanas.supernet.data.folders.walk import FolderContent, image_endings, walk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "class" / "sub").mkdir(parents=True)
    for name in ("a.png", "sub/b.JPEG"):
        Image.new("RGB", (2, 2)).save(tmp_path / "class" / name)
    return tmp_path / "class"


def names(content: FolderContent) -> list[str]:
    return [name for name, _ in content.images]


def test_images_of_all_depths_are_found(folder: Path) -> None:
    content = walk(folder)
    assert names(content) == ["a.png", "sub/b.JPEG"]
    assert content.folders == ["sub"]
    assert content.left_out == {}


@pytest.mark.parametrize(
    "name",
    [
        ".ipynb_checkpoints/a.png",
        "sub/.thumbnails/a.png",
        "@eaDir/a.png",
        "__MACOSX/a.png",
        "$RECYCLE.BIN/a.png",
        "lost+found/a.png",
        "._a.png",
        ".DS_Store",
        "Thumbs.db",
        "sub/desktop.ini",
    ],
)
def test_hidden_and_generated_files_are_left_out_at_every_depth(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"x")
    content = walk(folder)
    assert names(content) == ["a.png", "sub/b.JPEG"]
    assert content.left_out == {"hidden or generated": 1}


def test_what_pillow_reads_is_an_image_and_the_rest_is_counted_by_ending(folder: Path) -> None:
    for name in ("c.jfif", "c.AVIF", "c.tga", "x.heic", "y.HEIC", "x.eps", "noending"):
        (folder / name).write_bytes(b"x")
    content = walk(folder)
    assert names(content) == ["a.png", "c.AVIF", "c.jfif", "c.tga", "sub/b.JPEG"]
    assert content.left_out == {".heic": 2, ".eps": 1, "no ending": 1}
    assert {".webp", ".tif", ".jp2", ".pgm"} <= image_endings()
    assert not {".pdf", ".hdf", ".mpg", ".ps", ".wmf"} & image_endings()


def test_links_are_followed_once(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Image.new("RGB", (2, 2)).save(elsewhere / "c.png")
    (folder / "linked").symlink_to(elsewhere)
    (folder / "up").symlink_to(folder)
    (elsewhere / "back").symlink_to(folder)
    (folder / "d.png").symlink_to(elsewhere / "c.png")
    (folder / "gone.png").symlink_to(tmp_path / "nowhere")
    content = walk(folder)
    assert names(content) == ["a.png", "d.png", "linked/c.png", "sub/b.JPEG"]
    assert content.left_out == {"broken link": 1}


def test_what_is_no_plain_file_is_never_opened(folder: Path) -> None:
    os.mkfifo(folder / "pipe.png")
    (folder / "to-pipe.png").symlink_to(folder / "pipe.png")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s.png"))
        content = walk(folder)
    assert names(content) == ["a.png", "sub/b.JPEG"]
    assert content.left_out == {"no plain file": 3}


def test_a_folder_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(DataError, match="class cannot be read"):
        walk(folder)
