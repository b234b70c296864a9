"""Networks by the names that libraries have for them: with random weights, or with those of a file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.models import get_model

from chanas.errors import CheckpointError, ModelError
from chanas.models.sources.libraries import made_network
from chanas.models.sources.opening import open_model
from chanas.network.preprocess import preprocess_of

from .test_opening import Trap, save_onnx

NAME, SHAPES = "squeezenet1_1", {"image": (1, 3, 64, 64)}


def trained(num_classes: int = 1000) -> nn.Module:
    torch.manual_seed(7)
    network: nn.Module = get_model(NAME, num_classes=num_classes).eval()
    return network


def save(path: Path, tensors: dict[str, Tensor]) -> Path:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


def made(path: Path | None, name: str = NAME) -> Any:
    return made_network("torchvision", name, SHAPES, path)


def answer(network: nn.Module) -> Tensor:
    with torch.inference_mode():
        return torch.as_tensor(network(torch.linspace(0, 1, 3 * 64 * 64).reshape(1, 3, 64, 64)))


def test_weights_of_a_file_are_those_of_the_program_and_bring_their_way_of_preparing_pictures(tmp_path: Path) -> None:
    network = trained()
    path = save(tmp_path / "trained.safetensors", network.state_dict())
    opened = open_model(f"torchvision:{NAME}", SHAPES, path)
    (image,) = opened.random_inputs()
    with torch.inference_mode():
        expected = network(torch.from_numpy(image)).numpy()
    np.testing.assert_allclose(opened.answer([image])[0], expected, rtol=1e-5, atol=1e-6)
    assert opened.origin["weights"] == str(path)
    assert "SqueezeNet1_1_Weights" in opened.origin["pictures"]
    preprocess = preprocess_of(opened.inputs[0].shape, opened.pictures)
    assert preprocess.mean == (0.485, 0.456, 0.406)
    assert preprocess.crop_ratio == 0.875


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_are_taken_as_training_scripts_write_them(suffix: str, tmp_path: Path) -> None:
    state = trained().state_dict()
    wrapped: Any = {f"module.{name}": value for name, value in state.items()}
    path = save(tmp_path / f"w{suffix}", wrapped if suffix == ".safetensors" else {"state_dict": wrapped, "epoch": 3})
    assert torch.equal(answer(made(path).module), answer(trained()))


def test_a_head_for_another_number_of_classes_is_made(tmp_path: Path) -> None:
    path = save(tmp_path / "ten.pth", trained(10).state_dict())
    assert torch.equal(answer(made(path).module), answer(trained(10)))


def test_weights_of_another_network_are_one_line_with_what_differs(tmp_path: Path) -> None:
    state = trained().state_dict()
    state["features.0.weight"] = torch.zeros(8, 3, 3, 3)
    state["more"] = state.pop("features.0.bias")
    with pytest.raises(
        CheckpointError, match=r"1 missing \(features\.0\.bias\), 1 surplus \(more\), 1 misshapen \(features\.0\.weight"
    ):
        made(save(tmp_path / "other.pth", state))


@pytest.mark.parametrize("name", ["code.pth", "code.safetensors", "missing.pth"])
def test_weights_that_are_no_tensors_are_refused_unopened(name: str, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    if not name.startswith("missing"):
        torch.save({"features.0.weight": Trap(sprung)}, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"holds more than tensors|not a whole file|does not exist"):
        made(tmp_path / name)
    assert not sprung.exists()


def test_weights_beside_a_file_that_has_its_own_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--weights is for torchvision and timm:NAME"):
        open_model(save_onnx(tmp_path / "net.onnx"), weights=tmp_path / "w.pth")


def test_a_library_that_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ModelError, match="pip install timm"):
        open_model("timm:resnet18")


def test_a_detector_that_looks_twice_is_refused() -> None:
    with pytest.raises(ModelError, match="looks again at regions"):
        made(None, "fasterrcnn_mobilenet_v3_large_320_fpn")


def test_a_detector_of_one_stage_is_opened_up_to_the_maps_that_it_predicts() -> None:
    network = made_network("torchvision", "ssdlite320_mobilenet_v3_large", {})
    assert network.origin["part"]
    with torch.inference_mode():
        maps = network.module(torch.zeros(network.shape))
    assert {name: value.shape[-1] for name, value in maps.items()} == {"bbox_regression": 4, "cls_logits": 91}


def test_networks_of_timm_have_their_own_size_and_preparation(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    network = timm.create_model("lcnet_050", pretrained=False)
    path = save(tmp_path / "w.safetensors", {n: v.contiguous() for n, v in network.state_dict().items()})
    taken = made_network("timm", "lcnet_050", {}, path)
    assert taken.shape == (1, 3, 224, 224)
    assert taken.pictures["filter"] == "bicubic"
    with pytest.raises(ModelError, match="unknown network of timm"):
        made_network("timm", "hf_hub:someone/lcnet_050", {})


def test_an_input_that_it_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"has no input x; give --shape image=1,3,224,224"):
        open_model(f"torchvision:{NAME}", {"x": (1, 3, 64, 64)})
