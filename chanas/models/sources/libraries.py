"""Networks that libraries make by name, torchvision's and timm's: with random weights, or with those of a file.

Detectors are opened up to the maps that they predict: what chooses boxes from these takes loops and shapes that depend
on numbers. So those of one stage alone can be.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from chanas.errors import CheckpointError, ModelError, describe, unknown_name
from chanas.models.sources.model import IMAGE, OpenedModel, Shapes
from chanas.models.sources.torch_models import fill_zeros, opened_program, quiet, take_statistics, weights_digest
from chanas.network.state_dicts import checked_tensor, describe_differences, differences, read_tensors

_SIZE = 224
_SIZES = {"inception_v3": 299, "ssd300_vgg16": 300, "ssdlite320_mobilenet_v3_large": 320}
_DETECTOR_SIZE = 320  # those that take any size; torchvision's own default is 800, on which a processor takes seconds
_CLASSES = 1000
_COUNTER = "num_batches_tracked"
_PREFIX = "module."  # of networks that were trained on several devices


@dataclass(frozen=True)
class LibraryNetwork:
    """A network as a library makes it.

    make         the module for a number of classes, None for as many as the library says, and for tensors of a file, if
                 there are any
    size         rows and columns of an image that it is made for
    is_detector  it chooses boxes
    trained      the size of its published weights, and how pictures were prepared for them (`preprocess_of`); empty for
                 what is no classifier
    trained_by   who says so
    """

    make: Callable[[int | None, Mapping[str, Tensor]], nn.Module]
    size: int
    is_detector: bool = False
    trained: Mapping[str, Any] = field(default_factory=dict)
    trained_by: str = ""


@dataclass(frozen=True)
class MadeNetwork:
    """A network of a library in evaluation mode, with the shape of its image and how its weights want pictures prepared
    (empty for random ones, and for what is no classifier)."""

    module: nn.Module
    shape: tuple[int, ...]
    pictures: Mapping[str, Any]
    origin: Mapping[str, str]


def open_library_network(library: str, name: str, shapes: Shapes, weights: Path | None = None) -> OpenedModel:
    """A network of a library (`made_network`), as PyTorch exports it.

    Raises:
        ModelError: as `made_network` says, or it cannot be exported.
        CheckpointError: the weights are missing, damaged, or those of another network.
    """
    made = made_network(library, name, shapes, weights)
    try:
        with quiet():
            program = torch.export.export(made.module, (torch.zeros(made.shape),))
    except Exception as error:  # whatever the exporter or a network's own code raises
        raise ModelError(
            f"PyTorch cannot export {library}'s {name} for an image {list(made.shape)} ({describe(error)}); "
            "give another shape with --shape, or take another network"
        ) from error
    return opened_program(name, program, dict(made.origin), pictures=made.pictures)


def made_network(library: str, name: str, shapes: Shapes, weights: Path | None = None) -> MadeNetwork:
    """A network of a library of `MAKERS`, for one image of the size that it is made for, or as `shapes` says.

    Args:
        weights: a state dict, `.safetensors` or of torch.save; random weights without it.

    Raises:
        ModelError: the library has no such network, or it does not take such an image.
        CheckpointError: the weights are missing, damaged, or those of another network.
    """
    found = MAKERS[library](name)
    if others := [given for given in shapes if given != IMAGE]:
        raise ModelError(f"{library}'s {name} has no input {others[0]}; give --shape {IMAGE}=1,3,224,224")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tensors = {} if weights is None else _tensors(weights)
        try:
            network = found.make(None, tensors).eval()
        except Exception as error:  # whatever a library raises for a network that it cannot make
            raise ModelError(f"{library} does not make {name} ({describe(error)})") from error
        if weights is not None:
            network = _with_weights(network, found, weights, tensors)
        if found.is_detector:
            network = _up_to_maps(name, network)
        # a network with positions of its own keeps its size, whatever published weights were enlarged to
        trained = getattr(network, "image_size", found.trained.get("size", found.size))
        size = found.size if weights is None else int(trained)
        shape = tuple(shapes.get(IMAGE, (1, 3, size, size)))
        if weights is None:
            try:
                fill_zeros(network)
                take_statistics(network, shape)
            except Exception as error:  # whatever a network's own code raises on a shape that it was not made for
                raise ModelError(
                    f"{library}'s {name} does not take an image {list(shape)} ({describe(error)}); give "
                    "another one with --shape"
                ) from error
    origin = {
        "kind": library,
        "name": name,
        "sha256": weights_digest(network),
        "torch": torch.__version__,
        library: str(importlib.import_module(library).__version__),
    }
    pictures: dict[str, Any] = {}
    if weights is not None:
        pictures = {key: value for key, value in found.trained.items() if key != "size"}
        origin |= {"weights": str(weights)} | ({"pictures": found.trained_by} if pictures else {})
    if found.is_detector:
        origin["part"] = "up to the maps that it predicts"
    return MadeNetwork(network, shape, pictures, origin)


# ---- weights ---------------------------------------------------------------------------------------------------------
def _tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a state dict, floats as float32, without what counts batches in training."""
    content = read_tensors(path)
    is_wrapped = all(name.startswith(_PREFIX) for name in content)
    found = {}
    for name, value in content.items():
        plain = name.removeprefix(_PREFIX) if is_wrapped else name
        if not plain.endswith(_COUNTER):
            is_whole = isinstance(value, Tensor) and not value.is_floating_point()
            found[plain] = value if is_whole else checked_tensor(path, name, value)
    return found


def _with_weights(network: nn.Module, found: LibraryNetwork, path: Path, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The network with the weights of a file; made again if they are for another number of classes.

    Raises:
        CheckpointError: tensors are missing, surplus or misshapen.
    """
    expected = _shapes(network)
    others = {
        tuple(tensors[name].shape[:1])
        for name, shape in expected.items()
        if shape[:1] == (_CLASSES,) and name in tensors and tensors[name].shape != shape
    }
    if len(others) == 1 and (classes := next(iter(others))):
        network = found.make(classes[0], tensors).eval()
        expected = _shapes(network)
    if wrong := differences(tensors, expected):
        raise CheckpointError(
            f"{path} has not the weights of this network: tensors {describe_differences(wrong)}; name the network that "
            "they were trained in"
        )
    state = network.state_dict()
    network.load_state_dict({name: tensors[name].view_as(state[name]) for name in expected}, strict=False)
    return network


def _shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """Shapes of a network's weights by name, without what counts batches in training."""
    return {n: tuple(v.shape) for n, v in network.state_dict().items() if not n.endswith(_COUNTER)}


# ---- detectors -------------------------------------------------------------------------------------------------------
class _Maps(nn.Module):
    """A one-stage detector up to the maps that it predicts: classes and boxes of every place, by name."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.backbone: nn.Module = detector.get_submodule("backbone")
        self.head: nn.Module = detector.get_submodule("head")

    def forward(self, image: Tensor) -> Any:
        found = self.backbone(image)
        return self.head(list(found.values()) if isinstance(found, dict) else [found])


def _up_to_maps(name: str, network: nn.Module) -> nn.Module:
    """A detector up to its maps.

    Raises:
        ModelError: it has two stages.
    """
    if hasattr(network, "rpn"):
        raise ModelError(
            f"{name} looks again at regions that it finds, as many as the image has, which takes loops; networks have "
            "fixed shapes here: take a detector of one stage, such as ssdlite320_mobilenet_v3_large"
        )
    return _Maps(network).eval()


# ---- libraries -------------------------------------------------------------------------------------------------------
def _torchvision(name: str) -> LibraryNetwork:
    """A classifier, a network of semantic segmentation, or a detector of torchvision.

    Raises:
        ModelError: torchvision has no such network.
    """
    from torchvision import models

    classifiers, detectors = models.list_models(models), models.list_models(models.detection)
    known = [*classifiers, *models.list_models(models.segmentation), *detectors]
    if name not in known:
        raise ModelError(unknown_name("network of torchvision", name, known))
    is_inception = name in ("googlenet", "inception_v3")

    def make(classes: int | None, tensors: Mapping[str, Tensor]) -> nn.Module:
        options: dict[str, Any] = {} if classes is None else {"num_classes": classes}
        if is_inception:  # torchvision's own weights were trained for numbers from -1 to 1, which the network makes
            options |= {"transform_input": True, "init_weights": False} if tensors else {"init_weights": True}
        if name not in classifiers:
            options["weights_backbone"] = None
        if any(given.startswith("aux_classifier.") for given in tensors):
            options["aux_loss"] = True
        network: nn.Module = models.get_model(name, weights=None, **options)
        return network

    if name not in classifiers:
        is_detector = name in detectors
        return LibraryNetwork(make, _SIZES.get(name, _DETECTOR_SIZE if is_detector else _SIZE), is_detector)
    published = models.get_model_weights(name).DEFAULT
    how = published.transforms()
    trained = {
        "size": how.crop_size[0],
        "mean": tuple(how.mean),
        "std": tuple(how.std),
        "crop_ratio": how.crop_size[0] / how.resize_size[0],
        "filter": how.interpolation.value,
    }
    return LibraryNetwork(make, _SIZES.get(name, _SIZE), False, trained, str(published))


def _timm(name: str) -> LibraryNetwork:
    """A network of timm; a name may end in a tag of published weights, whose settings it then has.

    Raises:
        ModelError: timm has no such network.
    """
    with quiet():
        timm: Any = importlib.import_module("timm")
    if ":" in name or "/" in name or not timm.is_model(name):
        raise ModelError(f"unknown network of timm '{name}'; timm.list_models() has {len(timm.list_models())} names")

    def make(classes: int | None, _tensors: Mapping[str, Tensor]) -> nn.Module:
        more = {} if classes is None else {"num_classes": classes}
        network: nn.Module = timm.create_model(name, pretrained=False, **more)
        return network

    how = timm.models.get_pretrained_cfg(name)
    trained = {
        "size": how.input_size[-1],
        "mean": tuple(how.mean),
        "std": tuple(how.std),
        "crop_ratio": how.crop_pct,
        "filter": "bilinear" if how.interpolation == "bilinear" else "bicubic",
        "resize": "stretch" if how.crop_mode == "squash" else "crop",
    }
    return LibraryNetwork(make, how.input_size[-1], False, trained, f"timm's {name}")


MAKERS: Mapping[str, Callable[[str], LibraryNetwork]] = {"torchvision": _torchvision, "timm": _timm}
"""Makers of each library's networks, by the library's name."""
