"""A network from elsewhere as `chanas tune` leaves it: a folder that runs without the framework that it came from.

`module.so` is the compiled program, `module.json` the same before it was compiled, for export to C (folders of older
versions lack it), `weights.safetensors` its arguments, `tuned.json` says what it is, where it came from, and what was
measured.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from chanas.bundle.classes import Classifier, num_classes, read_labels
from chanas.bundle.runtimes import check_device, load_main, load_timed
from chanas.core.arrays import Array
from chanas.core.target import HardwareTarget
from chanas.devices.timing import time_single_calls
from chanas.errors import CheckpointError, ConfigError
from chanas.files.documents import Document
from chanas.files.writing import check_digests
from chanas.network.inputs import random_inputs
from chanas.network.preprocess import PRESETS, Preprocess, check_crop, preprocess_of

SCHEMA = 2
_OLDER = (1,)
"""Schemas without workloads of operators, preprocessing, and names of classes."""
DOCUMENT, WEIGHTS, MODULE, SOURCE = "tuned.json", "weights.safetensors", "module.so", "module.json"
LIBRARIES = ("torchvision", "timm")
"""Kinds of networks that a library makes by name."""
BUNDLE = "bundle"
"""The kind of networks that a search has found."""
RANDOM_WEIGHTS = "random weights: for timing only"
"""The remark on networks that were never trained, wherever they go: their outputs mean nothing."""
_NUM_WARM_UP = 3


def remark_of(origin: Mapping[str, str]) -> str:
    """The remark for users of a network of that origin; empty without one."""
    is_random = origin.get("kind") in (*LIBRARIES, BUNDLE) and not origin.get("weights")
    return "; ".join(filter(None, (RANDOM_WEIGHTS if is_random else "", origin.get("part", ""))))


@dataclass(frozen=True)
class TensorEntry:
    """An input or output of the network."""

    name: str
    shape: list[int]
    dtype: str


@dataclass(frozen=True)
class OperatorEntry:
    """An operator with the schedule that was taken.

    count    how often the network has it
    seconds  of one call, alone, with cold weights
    taken_from  operator whose schedule it took over without a trial; the seconds are a guess then
    workload    `Workload.to_json`; None in older folders
    trials, failed  points that were tried of it, and those of them that do not work; None in older folders
    mean_gflops, best_gflops  of its trials: the mean of those that work, and the fastest; alone, with cold weights
    share_of_peak  of the fastest; None where the peak is not known: of devices elsewhere
    lanes    of its channel blocks, where they are not those of the target's vectors
    """

    key: str
    point: list[int]
    count: int
    seconds: float
    taken_from: str = ""
    workload: dict[str, Any] | None = None
    lanes: int | None = None
    trials: int | None = None
    failed: int | None = None
    mean_gflops: float | None = None
    best_gflops: float | None = None
    share_of_peak: float | None = None


@dataclass(frozen=True)
class KnobsEntry:
    """The file of knobs that a network was tuned with: its name, and the hash of its content (`file_digest`)."""

    name: str
    hash: str


@dataclass(frozen=True)
class _Tuned:
    """Content of `tuned.json`.

    run  the run directory whose records it was tuned with, from the folder on; it may have moved
    """

    schema: int
    name: str
    run_id: str
    origin: dict[str, str]
    target: HardwareTarget
    inputs: list[TensorEntry]
    outputs: list[TensorEntry]
    parameters: list[str]
    operators: list[OperatorEntry]
    measured: dict[str, float]
    seconds: dict[str, float]
    hashes: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)
    remark: str = ""
    preprocess: dict[str, Any] | None = None
    class_names: list[str] | None = None
    probabilities: bool = False
    run: str | None = None
    knobs: KnobsEntry | None = None


_TUNED = Document("tuned network", _Tuned, "make it again with `chanas tune`", SCHEMA, older=_OLDER)


@dataclass
class TunedNetwork:
    """A tuned network that was opened.

    document  content of `tuned.json`
    """

    folder: Path
    target: HardwareTarget
    document: dict[str, Any]
    _function: Callable[..., Any] | None = None
    _inputs: tuple[Any, ...] = ()
    _views: tuple[Array, ...] = ()
    _parameters: tuple[Any, ...] = ()
    _output_shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def name(self) -> str:
        return str(self.document["name"])

    @property
    def remark(self) -> str:
        """The remark for its users, such as that its weights are random; empty without one."""
        return remark_of(self.document["origin"])

    @property
    def was_quantised(self) -> bool:
        """True if what it was tuned from is quantised already."""
        return bool((self.document.get("int8") or {}).get("method") == "file")

    @classmethod
    def open(cls, folder: Path | str) -> TunedNetwork:
        """Open a folder that `chanas tune` made.

        Raises:
            CheckpointError: it is no such folder, or a file is missing, damaged or of another network.
        """
        folder = Path(folder)
        if not (folder / DOCUMENT).is_file():
            what = "is no folder of a tuned network" if folder.exists() else "does not exist"
            raise CheckpointError(f"{folder} {what} (expected {DOCUMENT} in it); make one with `chanas tune MODEL`")
        document = _TUNED.read(folder / DOCUMENT)
        target = _TUNED.read_with(folder / DOCUMENT, lambda data: HardwareTarget.from_json(data["target"]))
        network = cls(folder, target, document)
        network.check_files(MODULE, WEIGHTS)
        return network

    def check_files(self, *names: str) -> None:
        """
        Raises:
            CheckpointError: one is missing, damaged or of another network.
        """
        digests = {name: self.document["hashes"].get(name) for name in names}
        check_digests(self.folder / DOCUMENT, digests, "folder", "chanas tune")

    def random_inputs(self, seed: int = 0, num_indices: int = 1) -> list[Array]:
        """Normal numbers for floats, zeros or other small ones for whole numbers (`chanas.network.inputs`)."""
        return random_inputs(((entry["shape"], entry["dtype"]) for entry in self.document["inputs"]), seed, num_indices)

    def run(self, *inputs: Array) -> list[Array]:
        """The outputs of the compiled network for its inputs, in order, in the shapes of `tuned.json`.

        Raises:
            ConfigError: there are more or fewer inputs, or one has another shape, or a type that is not safely the
                network's.
            TargetError: it was compiled for another device.
        """
        function = self.load()
        if len(inputs) != len(self._views):
            raise ConfigError(f"expected {len(self._views)} inputs of {self.name}, got {len(inputs)}")
        for i, (view, given) in enumerate(zip(self._views, inputs, strict=True)):
            array = np.asarray(given)
            if array.shape != view.shape or not np.can_cast(array.dtype, view.dtype, "same_kind"):
                entry = self.document["inputs"][i]
                raise ConfigError(
                    f"expected input {entry['name']} {entry['dtype']}{entry['shape']}, "
                    f"got {array.dtype}{list(array.shape)}"
                )
            view[...] = array
        found = function(*self._inputs, *self._parameters)
        outputs = [found] if hasattr(found, "numpy") else found
        # copied: one may be a weight, an input, or part of another; a mean of a map may have kept its axes
        pairs = zip(outputs, self._output_shapes, strict=True)
        return [np.array(np.from_dlpack(output)).reshape(shape) for output, shape in pairs]

    def classifier(self, changes: Mapping[str, Any] = MappingProxyType({}), labels: Path | None = None) -> Classifier:
        """The network as `chanas predict` uses it. Classes that have no names are numbered.

        Args:
            changes: of the stored preprocessing, as `preprocess_of` takes them.
            labels: file of the names of classes, instead of the stored ones.

        Raises:
            ConfigError: it is no classifier of pictures, it is not known how they are prepared, or the labels do not
                fit.
        """
        inputs, outputs = self.document["inputs"], self.document["outputs"]
        num, stored = num_classes(self.name, inputs, outputs), self.document.get("preprocess")
        if stored is None and not changes:
            raise ConfigError(
                f"{self.folder} does not say how pictures are prepared for {self.name}; give --preprocess "
                f"{', '.join(PRESETS)}, or --mean and --std, here or to `chanas tune`"
            )
        shape = inputs[0]["shape"]
        preprocess = preprocess_of(shape, changes, None if stored is None else Preprocess.from_json(stored))
        check_crop(changes, preprocess)
        names = self.document.get("class_names") if labels is None else read_labels(labels, num, self.name)

        def run(pictures: Array) -> Array:
            return np.stack([self.run(picture.reshape(shape))[0].reshape(num) for picture in pictures])

        names = tuple(names or map(str, range(num)))
        if len(names) != num:
            raise ConfigError(f"{self.folder} names {len(names)} classes of {num}; give --labels FILE")
        return Classifier(run, preprocess, names, self.document.get("probabilities", False))

    def program(self) -> Callable[[], Any]:
        """The compiled program by itself, on the inputs that are there: what tuning measured."""
        function = self.load()
        return lambda: function(*self._inputs, *self._parameters)

    def load(self) -> Callable[..., Any]:
        """Load the compiled program, once.

        Raises:
            TargetError: it was compiled for another device.
        """
        if self._function is None:
            check_device(self.target, str(self.folder), "run `chanas tune` here")
            function = load_main(self.folder / MODULE, self.target.num_threads)
            import tvm
            from safetensors.numpy import load_file

            weights = load_file(self.folder / WEIGHTS)
            self._parameters = tuple(tvm.runtime.tensor(weights[name]) for name in self.document["parameters"])
            self._inputs = tuple(
                tvm.runtime.tensor(np.zeros(entry["shape"], entry["dtype"])) for entry in self.document["inputs"]
            )
            self._views = tuple(np.from_dlpack(tensor) for tensor in self._inputs)
            self._output_shapes = tuple(tuple(entry["shape"]) for entry in self.document["outputs"])
            self._function = function
        return self._function

    def time_calls(self, num: int = 30) -> list[float]:
        """Seconds of single calls, after a few that are not counted."""
        return time_single_calls(self.program(), num, _NUM_WARM_UP)

    def time_kernels(self, least: int = 5, most: int = 50, enough_s: float = 1.0) -> list[tuple[str, float]]:
        """The name of each kernel that the network calls, in order, and its median seconds where it stands, over
        `least` calls of the network and as many more, up to `most`, as fit in `enough_s`.

        Raises:
            CheckpointError: the folder lacks `module.json`, or that is of another program than `module.so`.
            TargetError: it was compiled for another device.
        """
        if SOURCE not in self.document["hashes"]:
            raise CheckpointError(
                f"{self.folder} has no {SOURCE}, which says where each operator stands: it is of an older version; "
                "tune the network again"
            )
        self.check_files(SOURCE)
        expected = self.run(*self.random_inputs())
        run = load_timed(self.folder / MODULE, self.folder / SOURCE, self.target)
        found, _ = run(*self._inputs, *self._parameters)
        outputs = [found] if hasattr(found, "numpy") else found
        for one, other in zip(outputs, expected, strict=True):
            if not np.array_equal(np.from_dlpack(one).ravel(), other.ravel(), equal_nan=other.dtype.kind == "f"):
                raise CheckpointError(
                    f"{self.folder / SOURCE} is of another program than {MODULE}; make the folder again"
                )
        for _ in range(_NUM_WARM_UP):
            run(*self._inputs, *self._parameters)
        rounds: list[list[tuple[str, float]]] = []
        end_s = time.monotonic() + enough_s
        while len(rounds) < least or (len(rounds) < most and time.monotonic() < end_s):
            rounds.append(run(*self._inputs, *self._parameters)[1])
        return [(turns[0][0], statistics.median(s for _, s in turns)) for turns in zip(*rounds, strict=True)]
