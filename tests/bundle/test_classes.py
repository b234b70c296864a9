"""chanas/bundle/classes.py, and tuned networks as classifiers: what is one, and what its outputs mean."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import save_untuned
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn

from chanas.bundle.classes import Classifier, num_classes
from chanas.bundle.tuned import DOCUMENT, TunedNetwork
from chanas.errors import ConfigError
from chanas.network.preprocess import Preprocess


def test_the_likeliest_come_first_and_equal_ones_in_order() -> None:
    logits = np.log(np.array([[1.0, 4.0, 4.0, 1.0]]))
    one = Classifier(lambda _: logits, Preprocess(4, (0.0,) * 3, (1.0,) * 3), ("a", "b", "c", "d"))
    (found,) = one.rank([Image.new("RGB", (4, 4))], top=3)
    assert [(p.class_name, p.class_index) for p in found] == [("b", 1), ("c", 2), ("a", 0)]
    assert [p.probability for p in found] == pytest.approx([0.4, 0.4, 0.1])
    assert len(one.rank([Image.new("RGB", (4, 4))], top=9)[0]) == 4


def entry(*shape: int, dtype: str = "float32") -> dict[str, Any]:
    return {"shape": shape, "dtype": dtype}


@pytest.mark.parametrize("output", [(1, 10), (1, 10, 1, 1)])
def test_a_number_for_each_class_is_a_classifiers_output(output: tuple[int, ...]) -> None:
    assert num_classes("net", [entry(1, 3, 8, 8)], [entry(*output)]) == 10


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([entry(1, 3, 8, 8)], [entry(1, 10), entry(1, 10)]),
        ([entry(1, 3, 8, 8), entry(1, 4)], [entry(1, 10)]),
        ([entry(1, 3, 8, 8)], [entry(1, 21, 8, 8)]),
        ([entry(1, 3, 8, 8)], [entry(1, 1)]),
        ([entry(1, 3, 8, 8)], [entry(10)]),
        ([entry(1, 128, dtype="int64")], [entry(1, 2)]),
    ],
    ids=["two outputs", "two inputs", "a map", "one number", "no batch", "tokens"],
)
def test_other_networks_are_refused(inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="net is no classifier of pictures") as error:
        num_classes("net", inputs, outputs)
    assert "\n" not in str(error.value)


class Digits(nn.Module):
    """Grey pictures with channels last, and probabilities: float[1, 8, 8, 1] -> float[1, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = nn.Conv2d(1, 16, 3, padding=1), nn.Linear(16 * 64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.relu(self.conv(x.permute(0, 3, 1, 2))).flatten(1)
        return torch.softmax(8.0 * self.dense(found), 1)


def test_grey_pictures_channels_last_and_probabilities(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = Digits().eval()
    torch.export.save(torch.export.export(network, (torch.zeros(1, 8, 8, 1),)), tmp_path / "digits.pt2")
    tuned = TunedNetwork.open(save_untuned(tmp_path / "digits.pt2", tmp_path / "digits"))
    images = (load_digits().images[:6] * 15.9).astype(np.uint8)
    pixels = torch.from_numpy(images.astype(np.float32))
    ranked = tuned.classifier({"mean": (127.0,), "std": (128.0,), "white": 255.0}).rank(images, top=5)
    for found, picture in zip(ranked, pixels, strict=True):
        with torch.inference_mode():
            values, indices = network(((picture - 127.0) / 128.0)[None, :, :, None])[0].topk(5)
        assert [p.class_index for p in found] == indices.tolist()
        assert [p.class_name for p in found] == [str(i) for i in indices.tolist()]
        assert [p.probability for p in found] == pytest.approx(values.tolist(), abs=1e-5)


def test_names_that_do_not_fit_the_outputs_are_told(tuned_folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tuned_folder, tmp_path / "net"))
    document = json.loads((copy / DOCUMENT).read_text(encoding="utf-8"))
    (copy / DOCUMENT).write_text(json.dumps({**document, "class_names": ["a"]}), encoding="utf-8")
    with pytest.raises(ConfigError, match="names 1 classes of 5; give --labels FILE"):
        TunedNetwork.open(copy).classifier({"preset": "unit"})
