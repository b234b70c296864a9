"""A searched network in int8 is calibrated with train images alone and judged with holdout and test; what is not known
is told."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from chanas.bundle.codesign import CoDesign
from chanas.bundle.document import WEIGHTS
from chanas.bundle.tuned import DOCUMENT, TunedNetwork
from chanas.commands.main import app
from chanas.core.arch import SearchSpace
from chanas.core.effort import NetworkEffort
from chanas.core.processor import host_processor
from chanas.errors import CheckpointError, DataError
from chanas.files.run import RunDirectory
from chanas.files.writing import write_json
from chanas.measuring.worker.compiler import Compiler
from chanas.prescheduler.layouts import LayoutGraph
from chanas.supernet.data.images import ImageData, export_images
from chanas.supernet.training.evaluate import SupernetEvaluator
from chanas.supernet.training.phases import TrainConfig
from chanas.supernet.training.train import train_supernet
from chanas.workflows.models import chain
from chanas.workflows.models.bench import open_origin
from chanas.workflows.models.chain import LoadedModel, TunedModel
from chanas.workflows.models.quantizing import Judgement, Quantized, SplitAccuracy, quantize, run_of

from ...bundle.test_codesign import HOST, edit, make_bundle
from .test_calibration import in_int8

needs_int8 = pytest.mark.skipif("avx2" not in host_processor().used_flags, reason="int8 needs AVX2")
QUICK = NetworkEffort(trials=0)
CONFIG: dict[str, Any] = {
    "data": {"dataset": "digits"},
    "phases": [{"name": "a", "steps": 1, "base_lr": 0.05}],
    "batch_size": 8,
    "gap_batch_size": 4,
    "recalibration_images": 32,
    "num_threads": 1,
}


@pytest.fixture(scope="module")
def run(tiny_space: SearchSpace, tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> RunDirectory:
    """A run with a supernet of the digits, and a bundle, `2ms`, of random weights."""
    run = RunDirectory(tmp_path_factory.mktemp("quantized") / "run")
    train_supernet(run, tiny_space, TrainConfig.from_json(CONFIG), progress=False)
    data = SupernetEvaluator.load(run).data
    facts: dict[str, Any] = {
        "class_names": list(data.class_names),
        "preprocess": data.preprocess(tiny_space.smallest.resolution).to_json(),
        "hashes": {"splits": data.splits.digest},
    }
    made = make_bundle(tiny_space, run.root.parent, HOST, compiler, **facts)
    run.bundles.mkdir()
    made.rename(run.bundles / "2ms")
    run.bundle.symlink_to("bundles/2ms")
    return run


@pytest.fixture(scope="module")
def data(run: RunDirectory) -> ImageData:
    return SupernetEvaluator.load(run).data


@pytest.fixture
def elsewhere(run: RunDirectory, tmp_path: Path) -> Path:
    """A copy of the bundle that lies in no run."""
    return Path(shutil.copytree(run.bundle, tmp_path / "bundle"))


@pytest.fixture(scope="module")
def given(run: RunDirectory) -> Iterator[list[Any]]:
    """The inputs that networks are calibrated with."""
    seen: list[Any] = []
    tune = LoadedModel.tune

    def watched(loaded: LoadedModel, *places: Any, **options: Any) -> TunedModel:
        seen.append(options["calibration"])
        return tune(loaded, *places, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoadedModel, "tune", watched)
        yield seen


@pytest.fixture(scope="module")
def quantized(run: RunDirectory, given: list[Any]) -> Quantized:
    """The network with all operators in int8 that can be, whatever their time is."""
    with pytest.MonkeyPatch.context() as patch:
        chosen = LayoutGraph.chosen
        patch.setattr(LayoutGraph, "chosen", lambda graph, *_limits: (in_int8(graph), chosen(graph)[1]))
        patch.setattr(chain, "_is_faster", lambda *_: False)  # the one in float32, which was built first
        return quantize(run.root, effort=NetworkEffort(trials=1), progress=False)


@needs_int8
def test_the_result_lies_in_the_run_as_tune_leaves_it(run: RunDirectory, quantized: Quantized) -> None:
    assert quantized.saved.folder == run.root / "2ms-int8"
    network = quantized.saved.open()
    assert (network.target.dtype, network.remark) == ("int8", "")
    assert network.document["class_names"] == [str(digit) for digit in range(10)]
    assert network.document["int8"]["num_inputs"] == 300
    assert quantized.judgement.num_int8 > quantized.judgement.num_operators // 2
    assert run.records.is_file()


@needs_int8
def test_it_is_calibrated_with_train_images_as_they_are_classified(
    data: ImageData, quantized: Quantized, given: list[Any]
) -> None:
    (inputs,) = given
    own = [image.tobytes() for (image,) in inputs]
    splits = {
        split: {image.tobytes() for image in data.images(data.indices(split), 12)}
        for split in ("train", "gap", "holdout", "test")
    }
    assert len(own) == 300
    assert set(own) <= splits.pop("train")
    assert not any(set(own) & images for images in splits.values())
    assert quantized.judgement.calibration.startswith(f"with 300 of {len(data.indices('train'))} train images of ")


@needs_int8
def test_both_accuracies_are_of_all_images_of_holdout_and_test(
    run: RunDirectory, data: ImageData, quantized: Quantized
) -> None:
    network, float32 = quantized.saved.open(), CoDesign.load(run.bundle).torch_module()
    assert [found.split for found in quantized.judgement.accuracies] == ["holdout", "test"]
    for found in quantized.judgement.accuracies:
        indices = data.indices(found.split)
        images, labels = data.images(indices, 12), data.source.labels[indices]
        with torch.inference_mode():
            expected = float32(torch.from_numpy(images)).numpy().argmax(1)
        compiled = np.array([network.run(image[None])[0].argmax() for image in images])
        assert found.num_images == len(indices)
        assert found.top1_float32 == pytest.approx((expected == labels).mean())
        assert found.top1_int8 == pytest.approx((compiled == labels).mean())


@needs_int8
def test_its_folder_keeps_the_judgement(quantized: Quantized) -> None:
    stored = json.loads((quantized.saved.folder / DOCUMENT).read_text())["quantized"]
    accuracies = tuple(SplitAccuracy(**found) for found in stored.pop("accuracies"))
    assert Judgement(**stored, accuracies=accuracies) == quantized.judgement
    assert quantized.judgement.bundle_s is not None
    assert quantized.judgement.int8_s is not None


@needs_int8
def test_what_it_was_made_from_is_opened_again(run: RunDirectory, quantized: Quantized, elsewhere: Path) -> None:
    network = TunedNetwork.open(quantized.saved.folder)
    assert Path(open_origin(network).origin["source"]) == run.bundles / "2ms"
    assert Path(open_origin(network, elsewhere).origin["source"]) == elsewhere


@needs_int8
def test_a_folder_of_pictures_calibrates_what_lies_in_no_run(
    data: ImageData, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_images(data, "train", tmp_path / "pictures", limit=8)
    monkeypatch.chdir(tmp_path)
    arguments = ["quantize", "bundle", "--images", "pictures", "--effort", "none", "--out", "made"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert re.search(r"calibrated with pictures of pictures; 0 of \d+ operators in int8\n", result.output)
    assert "warning    of what was tried, no operator makes the network faster in int8" in result.output
    assert "accuracy   not known: bundle bundle lies in no run whose images would be known\n" in result.output
    assert "beside     the bundle's module " in result.output
    assert json.loads((tmp_path / "made" / DOCUMENT).read_text())["quantized"]["accuracies"] == []


def test_lines_tell_what_is_known() -> None:
    known = Judgement("with 8 pictures", 3, 5, (SplitAccuracy("test", 360, 0.9722, 0.97),), "", 3e-4, 2e-4)
    assert list(known.lines()) == [
        "calibrated with 8 pictures; 3 of 5 operators in int8",
        "accuracy   test top-1 97.22% in float32, 97.00% in int8, of 360 images",
        "beside     the bundle's module 300 us, int8 200 us: 1.50x as fast, in turns",
    ]
    unknown = dataclasses.replace(known, accuracies=(), why_none="no images", bundle_s=None)
    assert list(unknown.lines())[1:] == [
        "accuracy   not known: no images",
        "beside     the bundle has no module for so many threads of this machine",
    ]


# ---- what is refused ------------------------------------------------------------------------------------------------
def split_anew(bundle: Path) -> None:
    edit(bundle, hashes=json.loads((bundle / "codesign.json").read_text())["hashes"] | {"splits": "0123456789abcdef"})


def prepared_anew(bundle: Path) -> None:
    preprocess = json.loads((bundle / "codesign.json").read_text())["preprocess"]
    edit(bundle, preprocess=preprocess | {"crop_ratio": 0.5})


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "other splits": (split_anew, "are split otherwise than when bundle .* was searched; give --images FOLDER"),
    "other preparation": (prepared_anew, "are prepared otherwise than those of bundle .*; give --images FOLDER"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_images_that_are_others_now_are_told(
    change: Callable[[Path], None], message: str, run: RunDirectory, tmp_path: Path
) -> None:
    copy = RunDirectory(shutil.copytree(run.root, tmp_path / "copy", symlinks=True))
    change(copy.bundle)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=message) as error:
        quantize(copy.root, effort=QUICK, progress=False)
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_bundle_in_no_run_asks_for_pictures(elsewhere: Path) -> None:
    with pytest.raises(DataError, match="lies in no run whose images would be known; give --images FOLDER"):
        quantize(elsewhere, effort=QUICK, progress=False)


def test_random_weights_are_not_made_int8(elsewhere: Path) -> None:
    hashes = json.loads((elsewhere / "codesign.json").read_text())["hashes"]
    edit(elsewhere, hashes={name: digest for name, digest in hashes.items() if name != WEIGHTS})
    with pytest.raises(CheckpointError, match=r"has no weights .* nothing to make int8; search with a supernet"):
        quantize(elsewhere, effort=QUICK, progress=False)


def test_a_bundle_lies_in_the_run_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path / "run")
    write_json(run.bundles / "2ms" / "codesign.json", {})
    assert run_of(run.bundles / "2ms") is None
    write_json(run.supernet / "checkpoint.json", {})
    assert run_of(run.bundle) == run_of(run.bundles / "2ms") == run
    assert run_of(tmp_path / "elsewhere" / "2ms") is None
    monkeypatch.chdir(run.bundles)
    assert run_of(Path("2ms")) == run


def test_pictures_of_the_settings_calibrate_too(elsewhere: Path, tmp_path: Path) -> None:
    effort = dataclasses.replace(QUICK, calibration=str(tmp_path / "none"))
    with pytest.raises(DataError, match=r"expected a folder of pictures to calibrate with, got .*none$"):
        quantize(elsewhere, out=tmp_path / "made", effort=effort, progress=False)
