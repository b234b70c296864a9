"""The bundle that search emits: architecture, schedules, weights, and the compiled program. It loads and predicts in a
process without torch.

    codesign.json        what it is, what was predicted, what was measured, what it came from
    weights.safetensors  PyTorch parameters by name (as `chanas.network` names them); not there in a bundle that was
                         searched with accuracies measured elsewhere
    module.so            the compiled network, for the processor that codesign.json names; its weights are arguments
    module-TARGET.so     the same for each further target that it was searched for
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from chanas import cuda_runtime
from chanas.arch import Architecture, BlockConfig, SearchSpace
from chanas.errors import CheckpointError, DataError, TargetError
from chanas.folding import Array, pack_block, pack_block_rows, split_tensors, unpack_channels
from chanas.gpu_use import check_free
from chanas.lean_tvm import torch_hidden
from chanas.preprocess import Preprocess, open_rgb
from chanas.run import file_digest, read_json, replacing_folder, write_json
from chanas.scratch import scratch_folder
from chanas.target import HardwareTarget, differences, load_target

SCHEMA = 2
_DOCUMENT, _WEIGHTS, _MODULE = "codesign.json", "weights.safetensors", "module.so"


@dataclass(frozen=True)
class Prediction:
    """One image's class, with its softmax probability."""

    class_index: int
    class_name: str
    probability: float


def write_bundle(
    path: Path,
    document: Mapping[str, Any],
    tensors: Mapping[str, Array] | None,
    module: Path,
    further_modules: Sequence[Path] = (),
) -> None:
    """Write a bundle in one step, without weights where `tensors` is None; hashes of its files go into the document.

    `further_modules` are those of `document["further_targets"]`, in order.
    """
    further = [
        {**part, "module": f"module-{part['target']['name']}.so"} for part in document.get("further_targets", ())
    ]
    with replacing_folder(path) as folder:
        if tensors is not None:
            save_file(dict(tensors), folder / _WEIGHTS)
        shutil.copyfile(module, folder / _MODULE)
        for part, source in zip(further, further_modules, strict=True):
            shutil.copyfile(source, folder / part["module"])
        names = (_WEIGHTS, _MODULE, *(part["module"] for part in further))
        files = {name: file_digest(folder / name) for name in names if (folder / name).is_file()}
        hashes = {**document.get("hashes", {}), **files}
        content = {"schema": SCHEMA, **document, "hashes": hashes}
        write_json(folder / _DOCUMENT, content | ({"further_targets": further} if further else {}))


@dataclass(frozen=True)
class CompiledNetwork:
    """A loaded module: called with an image float32[C, R, R] it gives logits float32[classes].

    module  the compiled program by itself, on the image that is there: what a search measures
    """

    _predict: Callable[[Array], Array]
    module: Callable[[], Any]

    def __call__(self, image: Array) -> Array:
        return self._predict(image)


def compiled_network(
    module: Path,
    parameters: Sequence[Array],
    image_shape: tuple[int, int, int],
    num_classes: int,
    target: HardwareTarget,
) -> CompiledNetwork:
    """Load a compiled network.

    Args:
        module: the shared library.
        parameters: one array for each block, as `chanas.folding.pack_block` gives it.
        target: what the module was compiled for; the first network that a process loads sets its number of threads.
    """
    os.environ.setdefault("TVM_NUM_THREADS", str(target.num_threads))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    with torch_hidden():
        import tvm
        from tvm import relax

    # the loader gives back what it has under a name, whatever the file is by now: a bundle that was made anew
    with scratch_folder() as folder:
        copy = shutil.copyfile(module, folder / module.name)
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(copy)), tvm.cpu())
    function = machine["main"]
    arguments = [tvm.runtime.tensor(p) for p in parameters]
    # One input buffer for all calls: the module reads it in place, so an inference costs one small copy.
    buffer = tvm.runtime.tensor(np.zeros((image_shape[0], image_shape[1] * image_shape[2]), dtype=np.float32))
    view = np.from_dlpack(buffer).reshape(image_shape)

    def run(image: Array) -> Array:
        np.copyto(view, image)
        logits = np.asarray(np.from_dlpack(function(buffer, *arguments)), np.float32)
        return unpack_channels(logits, num_classes)[:, 0]

    return CompiledNetwork(run, functools.partial(function, buffer, *arguments))


class CoDesign:
    """A loaded bundle. `predict` takes arrays, `classify` image files.

    The compiled module runs in this process with as many threads as it was tuned for. A bundle that was searched for
    several targets has a module for each; `target` is the one that is used, by name, by default the first.

    Raises:
        TargetError: the bundle has no module for the target; the message names those that it has.
    """

    def __init__(self, path: Path, document: dict[str, Any], target: str | None = None) -> None:
        self.path, self.document = path, document
        self.space = SearchSpace.from_json(document["space"])
        self.architecture = Architecture.from_json(document["architecture"])
        self.space.check(self.architecture)
        parts = {part["target"]["name"]: part for part in (document, *document.get("further_targets", ()))}
        self.targets = tuple(parts)
        if target is not None and target not in parts:
            raise TargetError(
                f"bundle {path} has no module for target '{target}'; it has one for {', '.join(parts)}: search with "
                f"--latency {target}:BUDGET besides"
            )
        self.part = parts[target] if target else document
        self.target = HardwareTarget.from_json(self.part["target"])
        self._module = path / self.part.get("module", _MODULE)
        self.class_names: tuple[str, ...] = tuple(document["class_names"])
        self.preprocess = None if document["preprocess"] is None else Preprocess.from_json(document["preprocess"])

    @classmethod
    def load(cls, path: Path | str, target: str | None = None) -> CoDesign:
        """Open a bundle, with its module for `target` (by default the first), and check that it is whole.

        Raises:
            CheckpointError: the folder is not a bundle, or a file of it is missing, cut short or changed.
            TargetError: it has no module for the target.
        """
        path = Path(path)
        if not path.is_dir():
            raise CheckpointError(f"bundle {path} does not exist; `chanas search` makes one")
        document = read_json(path / _DOCUMENT, "bundle document")
        try:
            if document["schema"] != SCHEMA:
                raise CheckpointError(f"expected a bundle of schema {SCHEMA}, got {document['schema']} in {path}")
            further = [str(part["module"]) for part in document.get("further_targets", ())]
            for name in (_WEIGHTS, _MODULE, *further):
                if Path(name).name != name:
                    raise CheckpointError(f"{path / _DOCUMENT} names a module outside its folder: {name}")
                if name not in document["hashes"] and name == _WEIGHTS:
                    continue
                if not (path / name).is_file():
                    raise CheckpointError(f"bundle {path} lacks {name}; make it again with `chanas search`")
                if file_digest(path / name) != document["hashes"][name]:
                    raise CheckpointError(
                        f"{path / name} is cut short or was changed (its hash differs from the one in {_DOCUMENT}); "
                        "make the bundle again with `chanas search`"
                    )
            return cls(path, document, target)
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{path / _DOCUMENT} is not a bundle document: {error!r}") from error

    @property
    def blocks(self) -> tuple[BlockConfig, ...]:
        return self.architecture.blocks(self.space, len(self.class_names))

    @property
    def runs_here(self) -> bool:
        """Whether the module was compiled for this machine, with as many threads as it has cores at most."""
        try:
            return self._host().fingerprint == self.target.fingerprint
        except TargetError:
            return False

    def _host(self) -> HardwareTarget:
        """What this machine has of the target's kind. Raises TargetError: nothing, or too few cores."""
        return load_target("cpu" if self.target.gpu is None else "cuda", self.target.num_threads)

    @property
    def has_weights(self) -> bool:
        """Whether the bundle can predict; without weights it can only be timed."""
        return _WEIGHTS in self.document["hashes"]

    @functools.cached_property
    def tensors(self) -> dict[str, Array]:
        """PyTorch parameters by name; random ones where the bundle has no weights (imports torch)."""
        if not self.has_weights:
            from chanas.network import parameters_by_name, random_static_network

            return parameters_by_name(random_static_network(self.blocks, seed=0))
        try:
            return dict(load_file(self.path / _WEIGHTS))
        except SafetensorError as error:
            raise CheckpointError(f"{self.path / _WEIGHTS} is damaged ({error}); make the bundle again") from error

    @functools.cached_property
    def _parameters(self) -> list[Array]:
        parts = split_tensors(self.tensors, len(self.blocks))
        if self.target.gpu is not None:
            packed = zip(self.blocks, parts, strict=True)
            return [array for block, part in packed for array in pack_block_rows(block, part, self.target.dtype)]
        lanes = self.target.vector_lanes
        return [
            pack_block(block, part, lanes, self.target.dtype) for block, part in zip(self.blocks, parts, strict=True)
        ]

    @functools.cached_property
    def _run(self) -> Callable[[Array], Array]:
        """From an image to its logits; from a whole batch of them where the module takes several at once."""
        host = self._host()
        if host.fingerprint != self.target.fingerprint:
            raise TargetError(
                f"the bundle's module was compiled for {self.target.device} ({self.target.fingerprint}), this is "
                f"{host.device} ({host.fingerprint}), another processor ({differences(self.target, host)}); run "
                "`chanas prescheduler` and `chanas search` here"
            )
        resolution = self.architecture.resolution
        image_shape = (self.space.in_channels, resolution, resolution)
        if self.target.gpu is not None:
            batch = self.target.batch
            return cuda_runtime.compiled_network(self._module, self._parameters, image_shape, batch=batch)
        return compiled_network(self._module, self._parameters, image_shape, len(self.class_names), self.target)

    def predict(self, images: Array) -> Array:
        """Logits float32[N, classes] of preprocessed images float32[N, 3, R, R]: an inference for each batch, of which
        the last is filled up with images that come again.

        Raises:
            DataError: the images have another shape.
            CheckpointError: the bundle has no weights.
            TargetError: the module is for another processor.
        """
        if not self.has_weights:
            raise CheckpointError(
                f"bundle {self.path} has no weights (it was searched with accuracies measured elsewhere), so it cannot "
                "classify; `chanas bench` times its module"
            )
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

    def classify(self, paths: Sequence[Path], convert_rgb: bool = False) -> list[Prediction]:
        """The class of each image file.

        Raises:
            DataError: a file is missing, damaged or not RGB (unless `convert_rgb`).
        """
        if not paths:
            return []
        if self.preprocess is None:
            raise CheckpointError(f"bundle {self.path} does not say how images are prepared; it has no weights either")
        images = np.stack([self.preprocess(open_rgb(p, convert_rgb)) for p in paths])
        logits = self.predict(images).astype(np.float64)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        winners = shares.argmax(axis=1)
        return [Prediction(int(i), self.class_names[i], float(row[i])) for i, row in zip(winners, shares, strict=True)]

    def torch_module(self) -> Any:
        """The same network in PyTorch, in evaluation mode (imports torch)."""
        import torch

        from chanas.network import StaticNetwork

        network = StaticNetwork(self.blocks)
        state = {name: torch.from_numpy(np.array(value)) for name, value in self.tensors.items()}
        missing = network.load_state_dict(state, strict=False).missing_keys
        absent = [name for name in missing if not name.endswith("num_batches_tracked")]
        if absent:
            raise CheckpointError(f"{self.path / _WEIGHTS} lacks {absent[0]}; make the bundle again")
        return network.eval()

    def torch_logits(self, images: Array) -> Array:
        """What `predict` should give, by PyTorch (imports torch)."""
        import torch

        with torch.inference_mode():
            logits: Array = self.torch_module()(torch.from_numpy(images)).numpy()
        return logits


def interleaved_latency_s(
    contenders: Mapping[str, Callable[[], Any]], rounds: int = 40, min_round_s: float = 0.01
) -> dict[str, list[float]]:
    """Seconds per call of each contender, `rounds` samples each, taken in turns so that drift falls on all alike."""
    runs: dict[str, int] = {}
    for name, call in contenders.items():
        for _ in range(3):
            call()
        start = time.perf_counter()
        call()
        runs[name] = max(1, int(min_round_s / max(time.perf_counter() - start, 1e-7)))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            start = time.perf_counter()
            for _ in range(runs[name]):
                call()
            samples[name].append((time.perf_counter() - start) / runs[name])
    return samples


@contextlib.contextmanager
def limited_to(num_threads: int) -> Iterator[None]:
    """This process on its first `num_threads` cores, and PyTorch on as many threads; undone afterwards."""
    import torch

    before = torch.get_num_threads()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        torch.set_num_threads(num_threads)
        if cores is not None:
            os.sched_setaffinity(0, sorted(cores)[:num_threads])
        yield
    finally:
        torch.set_num_threads(before)
        if cores is not None:
            os.sched_setaffinity(0, cores)


MODULE_ALONE = "module alone"
"""The contender that a search's measurement of the bundle is comparable with."""


@dataclass(frozen=True)
class BenchmarkRow:
    """One contender: median seconds and what it is as a multiple of the compiled module's; or why it did not run."""

    name: str
    median_s: float | None
    ratio: float | None
    note: str = ""


class _OnGPU:
    """A PyTorch network on the GPU in channels last: from an image to logits, both in the host's memory."""

    def __init__(self, network: Any) -> None:
        import torch

        self._layout, self.network = torch.channels_last, network.cuda().to(memory_format=torch.channels_last)
        self._forward: Callable[[Any], Any] = self.network

    def compiled(self) -> _OnGPU:
        """The same through torch.compile with its own search of kernels and with CUDA graphs."""
        import torch

        other = _OnGPU(self.network)
        other._forward = torch.compile(self.network, mode="max-autotune")
        return other

    def __call__(self, x: Any) -> Any:
        return self._forward(x.cuda().contiguous(memory_format=self._layout)).cpu()


def _compiled_by_torch(network: Any) -> Callable[[Any], Any]:
    import torch

    if isinstance(network, _OnGPU):
        return network.compiled()
    compiled: Callable[[Any], Any] = torch.compile(network)
    return compiled


def benchmark(
    bundle: CoDesign, with_compile: bool = True, rounds: int = 40, shared: bool | None = False
) -> list[BenchmarkRow]:
    """The compiled module beside PyTorch eager and torch.compile: same weights, same images, same threads and cores.

    On a processor the module is there twice: as Python calls it, which copies an image in and logits out, and alone.
    On a GPU all of them have the images, one or a batch, from the host's memory and the logits back there, PyTorch in
    channels last. `shared`: although another process uses it; None where that was looked at before.

    Raises:
        TargetError: the module is for another device, or another process uses the GPU.
    """
    import torch

    if shared is not None:
        check_free([bundle.target], shared)

    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # that there is no GPU is not news
    resolution = bundle.architecture.resolution
    shape = (bundle.target.batch, bundle.space.in_channels, resolution, resolution)
    images = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    own = functools.partial(bundle._run, images if len(images) > 1 else images[0])  # tells when it is not for here
    contenders: dict[str, Callable[[], Any]] = {"chanas": own}
    if isinstance(bundle._run, CompiledNetwork):
        contenders[MODULE_ALONE] = bundle._run.module
    notes: dict[str, str] = {}
    network, x = bundle.torch_module(), torch.from_numpy(images)
    has_peers = bundle.target.gpu is None or torch.cuda.is_available()
    if not has_peers:
        notes = dict.fromkeys(
            ("PyTorch eager", *(["torch.compile"] if with_compile else [])), "PyTorch has no CUDA here"
        )
    elif bundle.target.gpu is not None:
        network = _OnGPU(network)
    if has_peers:
        contenders["PyTorch eager"] = functools.partial(network, x)
    with limited_to(bundle.target.num_threads), torch.inference_mode():
        if with_compile and has_peers:
            try:
                import torch._inductor.config as inductor

                with inductor.patch(freezing=True):
                    compiled = _compiled_by_torch(network)
                    compiled(x)
                contenders["torch.compile"] = functools.partial(compiled, x)
            except Exception as error:  # the compiler of another project: whatever it raises is its row's note
                notes["torch.compile"] = f"did not compile: {type(error).__name__}"
        samples = interleaved_latency_s(contenders, rounds)
    medians = {name: statistics.median(s) for name, s in samples.items()}
    rows = [BenchmarkRow(name, m, m / medians["chanas"]) for name, m in medians.items()]
    return rows + [BenchmarkRow(name, None, None, note) for name, note in notes.items()]
