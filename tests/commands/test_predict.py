"""`chanas predict`: files and folders of them, good ones and bad."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from chanas.bundle.classes import Prediction
from chanas.bundle.codesign import CoDesign
from chanas.commands.process import _Results, main


def brightness(images: Sequence[Image.Image], top: int) -> list[list[Prediction]]:
    bright, dark = Prediction(1, "bright", 0.75), Prediction(0, "dark", 0.75)
    return [([bright, dark] if np.asarray(image).mean() > 127 else [dark, bright])[:top] for image in images]


@pytest.fixture(autouse=True, params=[1, 3], ids="{} at once".format)
def bundle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle that tells bright images from dark ones."""
    classifier = SimpleNamespace(batch=request.param, rank=brightness)
    monkeypatch.setattr(CoDesign, "load", lambda path, target: SimpleNamespace(classifier=classifier))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "new" / "inner").mkdir(parents=True)
    for name, level in (("new/a.png", 0), ("new/b.jpg", 255), ("new/inner/c.png", 255)):
        Image.new("RGB", (32, 32), (level, level, level)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "new"


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    with pytest.raises(SystemExit) as end:
        main(["predict", "bundle", *arguments])
    out, err = capfd.readouterr()
    return int(end.value.code or 0), out.splitlines(), err


def lines(*pairs: str) -> list[str]:
    return ["\t".join([*pair.split(), "0.7500"]) for pair in pairs]


@pytest.mark.usefixtures("folder")
def test_files_and_folders_are_classified(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "new/b.jpg", "new", "new/b.jpg")
    assert (code, err) == (0, "")
    assert out == lines(
        "new/b.jpg bright", "new/a.png dark", "new/b.jpg bright", "new/inner/c.png bright", "new/b.jpg bright"
    )


@pytest.mark.usefixtures("folder")
def test_several_classes_of_an_image_are_a_line_each(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "new/a.png", "new/b.jpg", "--top", "2")
    assert code == 0
    assert out == lines("new/a.png dark", "new/a.png bright", "new/b.jpg bright", "new/b.jpg dark")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("option", [["--labels", "names.txt"], ["--mean", "0.5"], ["--preprocess", "imagenet"]])
def test_a_bundle_has_its_own_preparing_and_classes(capfd: pytest.CaptureFixture[str], option: list[str]) -> None:
    code, out, err = run(capfd, "new/a.png", *option)
    assert (code, out) == (1, [])
    assert err == "chanas: error: labels and the preparing of pictures go with networks that `chanas tune` made\n"


def test_the_good_ones_are_classified_and_the_bad_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    whole = (folder / "a.png").read_bytes()
    (folder / "b.jpg").write_bytes(whole[:60])
    code, out, err = run(capfd, "new", "new/none.png")
    assert code == 1
    assert out == lines("new/a.png dark", "new/inner/c.png bright")
    named, missing, last = err.splitlines()
    assert "new/b.jpg" in named
    assert "new/none.png does not exist" in missing
    assert last.startswith("chanas: error: 2 of 4 images")


def test_what_is_no_image_in_a_folder_is_counted(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "notes.txt").touch()
    (folder / ".hidden.png").touch()
    code, out, err = run(capfd, "new")
    assert (code, len(out)) == (0, 3)
    assert ".txt 1" in err


def test_a_folder_without_images_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").touch()
    code, out, err = run(capfd, str(tmp_path))
    assert (code, out, err.count("\n")) == (1, [], 1)
    assert f"{tmp_path} has no images" in err


def test_what_was_done_to_images_is_counted(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Image.new("RGBA", (32, 32), (0, 0, 0, 0)).save(folder / "a.png")
    code, out, err = run(capfd, "new/a.png", "new/b.jpg", "--convert-rgb")
    assert (code, out) == (0, lines("new/a.png bright", "new/b.jpg bright"))
    assert err == "1 of 2 images: transparency laid on white\n"


def test_a_name_of_any_bytes_is_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        os.rename(folder / "a.png", os.fsencode(folder) + b"/\xff.png")
    except OSError:
        pytest.skip("this file system has Unicode names only")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", _Results(written, "utf-8", "surrogateescape"))
    with pytest.raises(SystemExit) as end:
        main(["predict", "bundle", "new"])
    assert not end.value.code
    assert b"new/\xff.png\tdark" in written.getvalue()
