"""The bundle that search emits: architecture, schedules, weights, and the compiled program. It loads and predicts in a
process without torch.

    codesign.json        what it is, what was predicted, what was measured, what it came from
    weights.safetensors  PyTorch parameters by name (as `chanas.network.static` names them); not there in a bundle that
                         was searched with accuracies measured elsewhere
    module.so            the compiled network for the first target that codesign.json names; its weights are arguments
    module-TARGET.so     the same for each of the others
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from PIL import Image
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from chanas.bundle.classes import Classifier, Prediction
from chanas.bundle.document import DOCUMENT, MODULE, SCHEMA, WEIGHTS, read_document
from chanas.bundle.places import bundle_at
from chanas.bundle.runtimes import RUNTIMES, check_device
from chanas.core.arch import Architecture, SearchSpace
from chanas.core.arrays import Array, Float32Array
from chanas.core.blocks import BlockConfig, computing
from chanas.core.target import HardwareTarget
from chanas.errors import CheckpointError, DataError, TargetError
from chanas.files.writing import check_digests, file_digest, replacing_folder, write_json
from chanas.network.folding import packed_parameters, split_tensors
from chanas.network.pictures import Pictured
from chanas.network.preprocess import Preprocess


def write_bundle(
    path: Path,
    document: Mapping[str, Any],
    tensors: Mapping[str, Float32Array] | None,
    modules: Sequence[Path],
    kept: Path | None = None,
) -> None:
    """Write a bundle in one step, without weights where `tensors` is None; hashes of its files go into the document.

    `modules` are those of `document["targets"]`, in order; `kept` is where an earlier bundle goes, which is replaced by
    default.
    """
    targets = [
        {**part, "module": f"module-{part['target']['name']}.so" if number else MODULE}
        for number, part in enumerate(document["targets"])
    ]
    with replacing_folder(path, kept) as folder:
        if tensors is not None:
            save_file(dict(tensors), folder / WEIGHTS)
        for part, module in zip(targets, modules, strict=True):
            shutil.copyfile(module, folder / part["module"])
        files = {file.name: file_digest(file) for file in folder.iterdir()}
        hashes = {**document.get("hashes", {}), **files}
        write_json(folder / DOCUMENT, {**document, "schema": SCHEMA, "targets": targets, "hashes": hashes})


def _check_files(path: Path, document: Mapping[str, Any]) -> None:
    """Raises CheckpointError: a file that the document names is missing, outside of the folder, or was changed."""
    hashes = document["hashes"]
    modules = [part["module"] for part in document["targets"]]
    for name in modules:
        if Path(name).name != name:
            raise CheckpointError(f"{path / DOCUMENT} names a module outside its folder: {name}")
    names = [*([WEIGHTS] if WEIGHTS in hashes else []), *modules]
    check_digests(path / DOCUMENT, {name: hashes.get(name) for name in names}, "bundle", "chanas search")


class CoDesign:
    """A loaded bundle. `predict` takes arrays of preprocessed images, `classify` images of any kind.

    The compiled module runs in this process with as many threads as it was tuned for. A bundle has a module for each
    target that it was searched for; `target` is the one that is used, by name, by default the first. `document` is what
    codesign.json says, `part` its entry of the target.

    Raises:
        TargetError: the bundle has no module for the target; the message names those that it has.
    """

    def __init__(self, path: Path, document: dict[str, Any], target: str | None = None) -> None:
        self.path, self.document = path, document
        self.space = SearchSpace.from_json(document["space"])
        self.architecture = Architecture.from_json(document["architecture"])
        self.space.check(self.architecture)
        parts = {part["target"]["name"]: part for part in document["targets"]}
        self.targets = tuple(parts)
        if target is not None and target not in parts:
            raise TargetError(
                f"bundle {path} has no module for target '{target}'; it has one for {', '.join(parts)}: search with "
                f"--latency {target}:BUDGET besides"
            )
        self.part: dict[str, Any] = parts[target or self.targets[0]]
        self.target = HardwareTarget.from_json(self.part["target"])
        self._module = path / self.part["module"]
        self.class_names: tuple[str, ...] = tuple(document["class_names"])
        self.preprocess = None if document["preprocess"] is None else Preprocess.from_json(document["preprocess"])

    @classmethod
    def load(cls, path: Path | str, target: str | None = None) -> CoDesign:
        """Open a bundle, or the newest one of a run directory, with its module for `target` (by default the first), and
        check that it is whole.

        Raises:
            CheckpointError: the folder has no bundle, or a file of it is missing, cut short or changed.
            TargetError: it has no module for the target.
        """
        path = bundle_at(path)

        def make(document: dict[str, Any]) -> CoDesign:
            _check_files(path, document)
            return cls(path, document, target)

        return read_document(path / DOCUMENT, make)

    @property
    def blocks(self) -> tuple[BlockConfig, ...]:
        return self.architecture.blocks(self.space, len(self.class_names))

    @property
    def dtypes(self) -> frozenset[str]:
        """Those that its blocks are in."""
        return frozenset(block.dtype or self.target.dtype for block in self.blocks)

    @property
    def constraints(self) -> dict[str, Any]:
        """Limits that were searched under: of every target, and `latency_s` of this one."""
        return self._figures("constraints")

    @property
    def predicted(self) -> dict[str, Any]:
        """Predicted `top1`, and `latency_s` on this target."""
        return self._figures("predicted")

    @property
    def measured(self) -> dict[str, Any]:
        """Measured accuracies, and `latency_s`, `spread_s` and others on this target (docs/formats.md)."""
        return self._figures("measured")

    def _figures(self, group: str) -> dict[str, Any]:
        return {**self.document.get(group, {}), **self.part.get(group, {})}

    @property
    def runs_here(self) -> bool:
        """True if the module was compiled for this machine, with at most as many threads as it has cores."""
        try:
            check_device(self.target, "the bundle's module", "")
        except TargetError:
            return False
        return True

    @property
    def has_weights(self) -> bool:
        """True if the bundle can predict; without weights it can only be timed."""
        return WEIGHTS in self.document["hashes"]

    def check_weights(self, consequence: str) -> None:
        """Raises CheckpointError: the bundle has no weights; the message ends with what follows from that."""
        if not self.has_weights:
            raise CheckpointError(
                f"bundle {self.path} has no weights (it was searched with accuracies measured elsewhere), so "
                f"{consequence}"
            )

    @functools.cached_property
    def tensors(self) -> dict[str, Float32Array]:
        """PyTorch parameters by name; random ones where the bundle has no weights (imports torch)."""
        if not self.has_weights:
            from chanas.network.static import parameters_by_name, random_static_network

            return parameters_by_name(random_static_network(computing(self.blocks), seed=0))
        try:
            return dict(load_file(self.path / WEIGHTS))
        except SafetensorError as error:
            raise CheckpointError(f"{self.path / WEIGHTS} is damaged ({error}); make the bundle again") from error

    @functools.cached_property
    def _parameters(self) -> list[Array]:
        return packed_parameters(self.blocks, split_tensors(self.tensors, self.blocks), self.target)

    @functools.cached_property
    def _run(self) -> Callable[[Float32Array], Float32Array]:
        """Compute an image's logits, or those of a whole batch if the module takes several images at once."""
        check_device(self.target, "the bundle's module", "run `chanas prescheduler` and `chanas search` here")
        resolution = self.architecture.resolution
        image_shape = (self.space.in_channels, resolution, resolution)
        load = RUNTIMES[self.target.kind]
        return load(self._module, self._parameters, image_shape, len(self.class_names), self.target)

    def predict(self, images: Float32Array) -> Float32Array:
        """Logits float32[N, classes] of preprocessed images float32[N, 3, R, R]: an inference for each batch, of which
        the last is filled up with images that come again.

        Raises:
            DataError: the images have another shape.
            CheckpointError: the bundle has no weights.
            TargetError: the module is for another processor.
        """
        self.check_weights("it cannot classify; `chanas bench` times its module")
        resolution = self.architecture.resolution
        expected = (self.space.in_channels, resolution, resolution)
        if images.ndim != 4 or images.shape[1:] != expected:
            raise DataError(f"expected images of shape [N, {', '.join(map(str, expected))}], got {list(images.shape)}")
        given, batch = np.asarray(images, dtype=np.float32), self.target.batch
        if not len(given):
            return np.zeros((0, len(self.class_names)), dtype=np.float32)
        if batch == 1:
            return np.stack([self._run(image) for image in given])
        parts = (given[i : i + batch] for i in range(0, len(given), batch))
        logits = [self._run(np.resize(part, (batch, *expected))) for part in parts]
        return np.concatenate(logits)[: len(given)]

    def inference(self, images: Float32Array) -> Callable[[], Float32Array]:
        """One inference of images float32[N, 3, R, R], as many as the module takes at once, to be timed.

        Raises:
            TargetError: the module is for another device.
        """
        return functools.partial(self._run, images if len(images) > 1 else images[0])

    @overload
    def classify(self, images: Pictured) -> Prediction: ...  # type: ignore[overload-overlap]  # a text is one path

    @overload
    def classify(self, images: Iterable[Pictured]) -> list[Prediction]: ...

    def classify(self, images: Pictured | Iterable[Pictured]) -> Prediction | list[Prediction]:
        """The class of an image, or of each of several: paths, images of Pillow's, or arrays uint8[H, W, 3].

        Raises:
            DataError: a file is missing or damaged, or an image is not one that `open_picture` takes.
            CheckpointError: the bundle has no weights.
        """
        if isinstance(images, str | Path | Image.Image | np.ndarray):
            return self.classify([images])[0]
        return [first for (first,) in self.classifier.rank(images)]

    @property
    def classifier(self) -> Classifier:
        """The network as `chanas predict` uses it.

        Raises:
            CheckpointError: the bundle does not say how images are prepared.
        """
        if self.preprocess is None:
            raise CheckpointError(f"bundle {self.path} does not say how images are prepared; it has no weights either")
        return Classifier(self.predict, self.preprocess, self.class_names, batch=self.target.batch)

    def torch_module(self) -> Any:
        """The same network in PyTorch, in evaluation mode (imports torch)."""
        import torch

        from chanas.network.static import StaticNetwork

        network = StaticNetwork(computing(self.blocks))
        state = {name: torch.from_numpy(np.array(value)) for name, value in self.tensors.items()}
        missing = network.load_state_dict(state, strict=False).missing_keys
        absent = [name for name in missing if not name.endswith("num_batches_tracked")]
        if absent:
            raise CheckpointError(f"{self.path / WEIGHTS} lacks {absent[0]}; make the bundle again")
        return network.eval()

    def torch_logits(self, images: Float32Array) -> Float32Array:
        """Compute the logits that `predict` should give, with PyTorch (imports torch)."""
        import torch

        with torch.inference_mode():
            logits: Float32Array = self.torch_module()(torch.from_numpy(images)).numpy()
        return logits
