"""`chanas tune --preprocess … --labels` and then `chanas predict`: the framework's classes of real pictures."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import sklearn
import torch
from PIL import Image
from torch import nn
from torchvision import transforms

from chanas.commands.process import main
from chanas.core.arch import SearchSpace
from chanas.measuring.worker.compiler import Compiler

from ..bundle.test_codesign import HOST, make_bundle

PICTURES = [Path(sklearn.__file__).parent / "datasets" / "images" / name for name in ("china.jpg", "flower.jpg")]
NAMES = [f"class {letter}" for letter in "abcdefgh"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    out, err = capfd.readouterr()
    return int(end.value.code or 0), out.splitlines(), err


def classifier() -> nn.Module:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
    network = nn.Sequential(first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, len(NAMES))).eval()
    with torch.no_grad():
        network[3].weight *= 20.0  # classes far from each other
    return network


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network in `net.onnx`, names in `names.txt`, and the network tuned in `net`."""
    place = tmp_path_factory.mktemp("classifier")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        written = torch.onnx.export(classifier(), (torch.zeros(1, 3, 48, 64),), external_data=False, verbose=False)
    assert written is not None
    written.save(place / "net.onnx")
    (place / "names.txt").write_text("\n".join(NAMES) + "\n", encoding="utf-8")
    options = ["--trials", "1", "--out", str(place / "net"), "--run", str(place)]
    pictures = ["--preprocess", "imagenet", "--resize", "stretch", "--labels", str(place / "names.txt")]
    with pytest.raises(SystemExit) as end:
        main(["tune", str(place / "net.onnx"), *options, *pictures])
    assert not end.value.code
    return place


def expected(mean: tuple[float, ...], std: tuple[float, ...], top: int) -> list[tuple[str, str, float]]:
    """PyTorch's classes of the pictures, as torchvision prepares them."""
    prepare = transforms.Compose([transforms.Resize((48, 64)), transforms.ToTensor(), transforms.Normalize(mean, std)])
    found = []
    for picture in PICTURES:
        with torch.inference_mode(), Image.open(picture) as image:
            shares = classifier()(prepare(image)[None]).softmax(1)[0]
        values, indices = shares.topk(top)
        found += [(str(picture), NAMES[i], v) for i, v in zip(indices.tolist(), values.tolist(), strict=True)]
    return found


def told(lines: list[str]) -> list[tuple[str, str, float]]:
    return [(file, name, float(share)) for file, name, share in (line.split("\t") for line in lines)]


def test_the_five_likeliest_classes_are_those_of_the_framework(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "predict", str(place / "net"), *map(str, PICTURES), "--top", "5")
    assert (code, err) == (0, "")
    wanted = expected(MEAN, STD, 5)
    assert [row[:2] for row in told(out)] == [row[:2] for row in wanted]
    assert [row[2] for row in told(out)] == pytest.approx([row[2] for row in wanted], abs=1e-4)
    assert len({row[1] for row in told(out)}) >= 5


def test_a_bundle_that_was_tuned_classifies_as_it_does(
    tiny_space: SearchSpace, compiler: Compiler, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bundle, folder = make_bundle(tiny_space, tmp_path, HOST, compiler), str(tmp_path / "tuned")
    code, out, _ = run(capfd, "tune", str(bundle), "--effort", "none", "--out", folder, "--run", str(tmp_path / "run"))
    assert (code, out[0].split("; ")[0]) == (0, "pictures   prepared as the bundle says")
    _, wanted, _ = run(capfd, "predict", str(bundle), *map(str, PICTURES), "--top", "5")
    code, out, err = run(capfd, "predict", folder, *map(str, PICTURES), "--top", "5")
    assert (code, err) == (0, "")
    assert [row[:2] for row in told(out)] == [row[:2] for row in told(wanted)]
    assert [row[2] for row in told(out)] == pytest.approx([row[2] for row in told(wanted)], abs=2e-4)


def test_what_tune_kept_may_be_said_otherwise(place: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("\n".join(name.upper() for name in NAMES), encoding="utf-8")
    options = ["--preprocess", "raw", "--mean", "127", "--std", "128", "--resize", "stretch", "--labels", str(other)]
    code, out, _ = run(capfd, "predict", str(place / "net"), *map(str, PICTURES), *options)
    wanted = expected((127 / 255,) * 3, (128 / 255,) * 3, 1)
    assert code == 0
    assert [row[:2] for row in told(out)] == [(file, name.upper()) for file, name, _ in wanted]
    assert [row[2] for row in told(out)] == pytest.approx([row[2] for row in wanted], abs=1e-4)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (NAMES[:-1], "expected a line for each of the 8 outputs of net, {} has 7"),
        ([*NAMES, "more"], "expected a line for each of the 8 outputs of net, {} has 9"),
        (["a", "", *NAMES[2:]], "expected the name of a class in line 2 of {}, it is empty"),
    ],
    ids=["fewer", "more", "empty"],
)
@pytest.mark.parametrize("command", ["predict", "tune"])
def test_labels_that_do_not_fit_are_refused(
    place: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, lines: list[str], message: str, command: str
) -> None:
    labels = tmp_path / "names.txt"
    labels.write_text("\n".join(lines), encoding="utf-8")
    given = [str(place / "net"), str(PICTURES[0])] if command == "predict" else [str(place / "net.onnx")]
    code, out, err = run(capfd, command, *given, "--labels", str(labels))
    assert (code, out) == (1, [])
    assert err.splitlines()[-1] == f"chanas: error: {message.format(labels)}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preprocess", "imagenot"], "unknown preset of pictures 'imagenot'"),
        (["--mean", "a,b"], "expected --mean 127 or --mean 0.485,0.456,0.406, got 'a,b'"),
        (["--mean", "1,2"], "expected 3 means and 3 deviations for rgb"),
        (["--std", "0"], "deviations above zero"),
        (["--resize", "squeeze"], "unknown resize of pictures 'squeeze'"),
        (["--preprocess", "unit", "--resize", "stretch", "--crop", "0.9"], "--crop goes with --resize crop"),
        (["--channels", "grey"], "has 3 channels, which are not grey"),
        (["--target", "cpu"], "--target goes with bundles"),
    ],
    ids=lambda given: given[-1] if isinstance(given, list) else "",
)
def test_preparing_that_makes_no_sense_is_one_line(
    place: Path, capfd: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    code, out, err = run(capfd, "predict", str(place / "net"), str(PICTURES[0]), *options)
    assert (code, out, err.count("\n")) == (1, [], 1)
    assert message in err


def test_a_network_that_does_not_say_how_pictures_are_prepared_asks(
    tuned_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, "predict", str(tuned_folder), str(PICTURES[0]))
    assert (code, out, err.count("\n")) == (1, [], 1)
    assert "does not say how pictures are prepared for net; give --preprocess imagenet, inception, unit, raw" in err
    code, out, err = run(capfd, "predict", str(tuned_folder), str(PICTURES[0]), "--preprocess", "unit")
    assert (code, err) == (0, "")
    assert out[0].split("\t")[1] in {"0", "1", "2", "3", "4"}
