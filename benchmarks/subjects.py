"""The networks that are compared: a bundle as search leaves it, or torchvision's MobileNetV3-Large as it stands there.

A subject is a folder. That of torchvision's network holds `network.json` (blocks, target), `weights.safetensors` (the
names of torchvision's state), `parameters.npz` (what the compiled kernels read) and `module.so`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from chanas.bundle.codesign import CoDesign
from chanas.bundle.runtimes import compiled_network
from chanas.core.arrays import Float32Array
from chanas.core.blocks import BlockConfig
from chanas.core.target import HardwareTarget
from chanas.files.writing import read_json, write_json
from chanas.network.folding import BN_EPSILON, packed_parameters
from chanas.prescheduler.tables.networks import NetworkJob

NUM_CLASSES, RESOLUTION = 1000, 224
_DOCUMENT, _WEIGHTS, _PARAMETERS, _MODULE = "network.json", "weights.safetensors", "parameters.npz", "module.so"


class Subject(Protocol):
    """A compiled network and the same in PyTorch."""

    name: str
    image_shape: tuple[int, int, int]

    def compiled(self) -> Callable[[Float32Array], Float32Array]:
        """float32[3, R, R] -> logits float32[classes], through the compiled module."""
        ...

    def torch_module(self) -> Any:
        """The network in PyTorch, in evaluation mode."""
        ...


class BundleSubject:
    """The network of a bundle, through the bundle's own interface."""

    def __init__(self, path: Path) -> None:
        self._bundle = CoDesign.load(path)
        resolution = self._bundle.architecture.resolution
        self.name = self._bundle.architecture.key
        self.image_shape = (self._bundle.space.in_channels, resolution, resolution)

    def compiled(self) -> Callable[[Float32Array], Float32Array]:
        return lambda image: self._bundle.predict(image[None])[0]

    def torch_module(self) -> Any:
        return self._bundle.torch_module()


class TorchvisionSubject:
    """torchvision's MobileNetV3-Large, compiled by chanas."""

    name = "torchvision mobilenet_v3_large"
    image_shape = (3, RESOLUTION, RESOLUTION)

    def __init__(self, path: Path) -> None:
        self._path = path

    def compiled(self) -> Callable[[Float32Array], Float32Array]:
        document = read_json(self._path / _DOCUMENT, "network document")
        with np.load(self._path / _PARAMETERS, allow_pickle=False) as data:
            parameters = [data[f"block{i}"] for i in range(len(data.files))]
        target = HardwareTarget.from_json(document["target"])
        return compiled_network(self._path / _MODULE, parameters, self.image_shape, NUM_CLASSES, target)

    def torch_module(self) -> Any:
        from safetensors.torch import load_file

        module = mobilenet_v3_large()
        module.load_state_dict(load_file(self._path / _WEIGHTS))
        return module


def load_subject(path: Path | str) -> Subject:
    """The subject that a folder holds."""
    path = Path(path)
    return TorchvisionSubject(path) if (path / _DOCUMENT).is_file() else BundleSubject(path)


def write_torchvision(path: Path, module: Any, job: NetworkJob, target: HardwareTarget) -> None:
    """A subject's folder, from torchvision's module and the job that compiled its blocks."""
    from safetensors.torch import save_file

    path.mkdir(parents=True)
    packed = packed_parameters(job.blocks, job.parameters, target)
    arrays: dict[str, Any] = {f"block{i}": array for i, array in enumerate(packed)}
    np.savez(path / _PARAMETERS, **arrays)
    save_file(module.state_dict(), path / _WEIGHTS)
    shutil.copyfile(job.library, path / _MODULE)
    write_json(path / _DOCUMENT, {"blocks": [b.to_json() for b in job.blocks], "target": target.to_json()})


def mobilenet_v3_large(seed: int | None = None) -> Any:
    """torchvision's network in evaluation mode, not pretrained; with a seed its weights and statistics are random."""
    import torch
    import torchvision

    from chanas.network.static import randomise_statistics

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed or 0)
        module = torchvision.models.mobilenet_v3_large(weights=None)
        if seed is not None:
            randomise_statistics(module, seed)
    return module.eval()


def torchvision_blocks(module: Any) -> tuple[BlockConfig, ...]:
    """The blocks of torchvision's MobileNetV3-Large."""
    from torch import nn

    stem, *middle, last = module.features
    size = -(-RESOLUTION // stem[0].stride[0])
    blocks = [BlockConfig("stem", RESOLUTION, 3, 0, stem[0].out_channels, 3, stem[0].stride[0], "hswish")]
    for layer in middle:
        first, depthwise, _, project = _parts(layer)
        inner = depthwise[0]
        use_se = any(type(part).__name__ == "SqueezeExcitation" for part in layer.block)
        inp = (depthwise if first is None else first)[0].in_channels
        blocks.append(
            BlockConfig(
                "mbconv",
                size,
                inp,
                inner.out_channels,
                project[0].out_channels,
                inner.kernel_size[0],
                inner.stride[0],
                "hswish" if isinstance(depthwise[2], nn.Hardswish) else "relu",
                use_se,
                layer.use_res_connect,
            )
        )
        size = blocks[-1].output_size
    head, (feature, _, _, linear) = last[0], module.classifier
    blocks.append(BlockConfig("head", size, head.in_channels, 0, head.out_channels, activation="hswish"))
    dense = BlockConfig(
        "classifier", 1, feature.in_features, feature.out_features, linear.out_features, activation="hswish"
    )
    return (*blocks, dense)


def _parts(layer: Any) -> tuple[Any, Any, Any, Any]:
    """Expand (or None), depthwise, squeeze-excite (or None) and project of one of torchvision's blocks."""
    parts = list(layer.block)
    project, rest = parts[-1], parts[:-1]
    squeeze = rest.pop() if type(rest[-1]).__name__ == "SqueezeExcitation" else None
    depthwise = rest.pop()
    return (rest[0] if rest else None), depthwise, squeeze, project


def torchvision_tensors(module: Any) -> tuple[dict[str, Float32Array], ...]:
    """The parameters of each block under chanas' names.

    torchvision's batch normalisations add 1e-3 to the variance, ours 1e-5: the difference goes into the variance.

    Raises:
        ValueError: the first dense layer has a bias other than zero, which our classifier has no place for.
    """

    def numpy(tensor: Any) -> Float32Array:
        return np.array(tensor.detach().numpy(), dtype=np.float32)

    def conv_bn(name: str, layer: Any) -> dict[str, Float32Array]:
        conv, bn = layer[0], layer[1]
        return {
            f"{name}.conv.weight": numpy(conv.weight),
            f"{name}.bn.weight": numpy(bn.weight),
            f"{name}.bn.bias": numpy(bn.bias),
            f"{name}.bn.running_mean": numpy(bn.running_mean),
            f"{name}.bn.running_var": numpy(bn.running_var) + np.float32(bn.eps - BN_EPSILON),
        }

    stem, *middle, last = module.features
    tensors = [conv_bn("conv", stem)]
    for layer in middle:
        first, depthwise, squeeze, project = _parts(layer)
        block = {} if first is None else conv_bn("expand", first)
        block |= conv_bn("depthwise", depthwise)
        if squeeze is not None:
            for name, dense in (("se.reduce", squeeze.fc1), ("se.expand", squeeze.fc2)):
                block |= {f"{name}.weight": numpy(dense.weight), f"{name}.bias": numpy(dense.bias)}
        tensors.append(block | conv_bn("project", project))
    feature, _, _, linear = module.classifier
    if np.any(numpy(feature.bias)):
        raise ValueError("the bias of torchvision's first dense layer is not zero")
    classifier = {
        "feature.weight": numpy(feature.weight),
        "linear.weight": numpy(linear.weight),
        "linear.bias": numpy(linear.bias),
    }
    return (*tensors, conv_bn("conv", last), classifier)


def torchvision_job(module: Any, blocks: Sequence[BlockConfig], library: Path, seed: int, batch: int = 1) -> NetworkJob:
    """The job that compiles torchvision's network: its blocks, random images, and the logits of torchvision's code."""
    import torch

    images = np.random.default_rng(seed).standard_normal((batch, 3, RESOLUTION, RESOLUTION), dtype=np.float32)
    with torch.inference_mode():
        logits = module(torch.from_numpy(images)).numpy()
    parameters: tuple[Mapping[str, Float32Array], ...] = torchvision_tensors(module)
    return NetworkJob(tuple(blocks), tuple(dict(p) for p in parameters), images, logits, library)
