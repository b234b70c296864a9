"""Networks that a search has found, as sources of finished ones: they bring weights, classes, and a way of preparing
pictures."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chanas.models.importing as importing
from chanas.bundle.codesign import CoDesign
from chanas.bundle.document import DOCUMENT, WEIGHTS
from chanas.bundle.tuned import BUNDLE, RANDOM_WEIGHTS, remark_of
from chanas.core.arch import SearchSpace
from chanas.errors import ChanasError, CheckpointError, ConfigError, ModelError
from chanas.files.run import RunDirectory
from chanas.files.writing import write_json
from chanas.measuring.worker.compiler import Compiler
from chanas.models.importing import import_network
from chanas.models.sources.model import OpenedModel
from chanas.models.sources.opening import open_model
from chanas.network.preprocess import Preprocess, preprocess_of
from chanas.workflows.models.chain import Model

from ...bundle.test_codesign import CLASSES, HOST, edit, images, logits_of_torch, make_bundle


@pytest.fixture(scope="module")
def run(tiny_space: SearchSpace, tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> RunDirectory:
    """A run whose newest bundle is called `2ms`."""
    run = RunDirectory(tmp_path_factory.mktemp("searched"))
    made = make_bundle(tiny_space, run.root, HOST, compiler)
    run.bundles.mkdir()
    made.rename(run.bundles / "2ms")
    run.bundle.symlink_to("bundles/2ms")
    return run


@pytest.fixture
def copy(run: RunDirectory, tmp_path: Path) -> Path:
    """A copy of the bundle, which a test may change."""
    return Path(shutil.copytree(run.bundle, tmp_path / "copy"))


@pytest.fixture(scope="module")
def opened(run: RunDirectory) -> OpenedModel:
    return open_model(run.bundles / "2ms")


def test_a_bundle_opens_with_its_own_weights(run: RunDirectory, opened: OpenedModel) -> None:
    (facts,) = opened.inputs
    assert (facts.shape, facts.dtype) == ((1, 3, 12, 12), "float32")
    x = images(1, 12)
    np.testing.assert_allclose(opened.answer([x])[0], logits_of_torch(run.bundle, x), rtol=1e-5, atol=1e-6)
    assert opened.program is not None


def test_it_says_where_it_comes_from(run: RunDirectory, opened: OpenedModel) -> None:
    key = CoDesign.load(run.bundle).architecture.key
    assert opened.name == key
    assert (opened.origin["kind"], opened.origin["name"], opened.origin["architecture"]) == (BUNDLE, "2ms", key)
    assert len(opened.origin["sha256"]) == 64
    assert remark_of(opened.origin) == ""


def test_a_run_stands_for_the_bundle_that_is_its_newest_now(run: RunDirectory, opened: OpenedModel) -> None:
    assert Path(opened.origin["source"]) == run.bundles / "2ms"
    assert open_model(run.root).origin == opened.origin


def test_it_brings_classes_and_a_way_of_preparing_pictures_and_options_change_them(
    run: RunDirectory, tmp_path: Path
) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("a\nb\nc\nd\ne\n", encoding="utf-8")
    loaded = Model.load(run.root)
    kept = loaded.for_pictures({"crop_ratio": 0.5}).pictures
    assert kept["class_names"] == list(CLASSES)
    assert (kept["preprocess"]["crop_ratio"], kept["preprocess"]["mean"]) == (0.5, [0.5, 0.4, 0.3])
    assert loaded.for_pictures({}, labels).pictures["class_names"] == list("abcde")


PREPARED: dict[str, dict[str, Any]] = {
    "cropped": {"crop_ratio": 0.875},
    "of pixels": {"white": 255.0, "mean": (127.0, 126.5, 1 / 3), "std": (128.0, 0.1, 3.0), "channels": "bgr"},
    "stretched": {"resize": "stretch", "filter": "bicubic"},
}


@pytest.mark.parametrize("changes", PREPARED.values(), ids=PREPARED)
def test_it_prepares_pictures_as_its_bundle_does(changes: dict[str, Any], copy: Path) -> None:
    own = dataclasses.replace(Preprocess(12, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), **changes)
    edit(copy, preprocess=own.to_json())
    loaded = Model.load(copy)
    assert preprocess_of(loaded.opened.inputs[0].shape, loaded.opened.pictures) == own
    assert loaded.for_pictures({}).pictures["preprocess"] == own.to_json()


REFUSED: dict[str, tuple[dict[str, Any], type[ChanasError], str]] = {
    "other rows": ({"resolution": 24}, ModelError, "which are not images [1, 3, 12, 12]; export its network"),
    "not square": ({"columns": 24}, ModelError, "which are not images [1, 3, 12, 12]; export its network"),
    "grey": ({"channels": "grey", "mean": (0.5,), "std": (0.5,)}, ConfigError, "3 channels, which are not grey"),
}


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_pictures_that_are_not_its_images_are_refused(
    changes: dict[str, Any], error: type[ChanasError], message: str, copy: Path
) -> None:
    own = dataclasses.replace(Preprocess(12, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)), **changes)
    edit(copy, preprocess=own.to_json())
    with pytest.raises(error, match=re.escape(message)):
        open_model(copy)


def test_without_weights_they_are_random_and_it_says_so(copy: Path) -> None:
    document = json.loads((copy / DOCUMENT).read_text())
    hashes = {name: digest for name, digest in document["hashes"].items() if name != WEIGHTS}
    edit(copy, hashes=hashes, preprocess=None)
    (copy / WEIGHTS).unlink()
    opened = open_model(copy)
    assert remark_of(opened.origin) == RANDOM_WEIGHTS
    assert opened.pictures == {}
    assert np.isfinite(opened.answer(opened.random_inputs())[0]).all()


def test_its_image_has_one_shape(run: RunDirectory) -> None:
    assert open_model(run.root, {"x_nchw": (1, 3, 12, 12)}).inputs[0].shape == (1, 3, 12, 12)
    with pytest.raises(ModelError, match=r"takes an image \[1, 3, 12, 12\]; leave out --shape"):
        open_model(run.root, {"x_nchw": (1, 3, 16, 16)})


def test_it_has_no_other_weights(run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has weights of its own; --weights is for torchvision and timm:NAME"):
        open_model(run.root, weights=tmp_path / "weights.pth")


def test_it_is_no_strangers_file(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "WorkerProcess", lambda *_: pytest.fail("another process opens it first"))
    assert import_network(run.root).origin["kind"] == BUNDLE


def test_a_damaged_bundle_is_one_line(copy: Path) -> None:
    (copy / WEIGHTS).write_bytes((copy / WEIGHTS).read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=WEIGHTS) as error:
        open_model(copy)
    assert "\n" not in str(error.value)


def test_folders_without_a_bundle_say_what_makes_one(tuned_folder: Path, tmp_path: Path) -> None:
    begun = RunDirectory(tmp_path / "begun")
    write_json(begun.supernet / "checkpoint.json", {})
    with pytest.raises(CheckpointError, match="has no bundle yet; `chanas search"):
        open_model(begun.root)
    with pytest.raises(CheckpointError, match="is a network that `chanas tune` made, no bundle"):
        open_model(tuned_folder)
    with pytest.raises(ModelError, match=r"or the folder of a bundle or run; \S+ is a folder"):
        open_model(tmp_path)
