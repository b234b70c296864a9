"""A found network with its weights as a file for other runtimes: ONNX, TorchScript, or a program of `torch.export`.

It takes any number of images at once, or a fixed one. What runs it has kernels of its own: the schedules that the
search found stay in the bundle's module, and what that costs is measured.
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import shutil
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chanas.bundle.benchmark import MAX_TEXT
from chanas.core.units import format_latency
from chanas.errors import CheckpointError, ConfigError, MeasureError, ModelError, describe
from chanas.files.locks import one_writer
from chanas.files.run import RunDirectory
from chanas.files.scratch import scratch_folder
from chanas.files.writing import replacing
from chanas.network.preprocess import Preprocess
from chanas.workflows.models.bench import clock_of
from chanas.workflows.models.contenders import Call, Subject, outputs_of, relative_error, run_onnxruntime

if TYPE_CHECKING:
    from chanas.bundle.codesign import CoDesign

NOTE = "chanas.json"
"""The entry of a file that says which network it is, its classes and how images are prepared."""
_ONNX_KEY = b"\n" + bytes([len(NOTE)]) + NOTE.encode()
"""A note's key as it stands in an ONNX file: field 1, its length, its text."""
INPUT, OUTPUT = "images", "logits"
NUM_IMAGES = 5
TOLERANCE = 1e-4
"""Error relative to the largest logit that is rounding: that of our own programs in float32."""
_ROUNDS, _NUM_WARM_UP, _MIN_ROUND_S = 20, 3, 0.01


@dataclass(frozen=True)
class FoundNetwork:
    """A network that was found, with its weights.

    module      in PyTorch, in evaluation mode
    preprocess  from an RGB image to its input
    bundle      the one that it is in; None of a fine-tuned one
    """

    key: str
    module: Any
    class_names: tuple[str, ...]
    preprocess: Preprocess
    bundle: CoDesign | None = None

    def note(self) -> str:
        """The content of `NOTE`."""
        entries = {"architecture": self.key, "class_names": self.class_names, "preprocess": self.preprocess.to_json()}
        return json.dumps(entries, ensure_ascii=False)

    def images(self, num: int) -> Any:
        """Random inputs float32[N, 3, R, R]."""
        size = self.preprocess.resolution
        return np.random.default_rng(0).standard_normal((num, 3, size, size), dtype=np.float32)


@dataclass(frozen=True)
class Format:
    """A kind of file.

    suffix    of its name
    runtime   what reads it here
    reader    the package that `runtime` is in
    write     the network, to a path, for so many images at once or, of None, any number
    run       a `Subject` whose `onnx` is the file, whatever its kind
    """

    suffix: str
    runtime: str
    reader: str
    write: Callable[[FoundNetwork, int | None, Path], None]
    run: Callable[[Subject], Call]


@dataclass(frozen=True)
class NetworkFile:
    """A written file.

    max_error  of logits against PyTorch's, relative to the largest; None where its runtime is not installed
    own_s      median seconds of the bundle's module for an image; None where it does not run here, with `why_not`
    file_s     of the file in its runtime, in turns with it
    """

    path: Path
    key: str
    runtime: str
    max_error: float | None
    own_s: float | None = None
    file_s: float | None = None
    why_not: str = ""

    def describe_check(self) -> str:
        if self.max_error is None:
            return f"not compared: {self.runtime} is not installed (pip install 'chanas[bench]')"
        return f"random images in {self.runtime}: logits within {self.max_error:.1g} of PyTorch's"

    def describe_cost(self) -> str:
        if self.own_s is None or self.file_s is None:
            return f"not measured: {self.why_not}"
        own, other = format_latency(self.own_s), format_latency(self.file_s)
        return (
            f"{self.runtime} {other}, the bundle's module {own}: {self.file_s / self.own_s:.2f}x without its schedules"
        )


# ---- the formats ----------------------------------------------------------------------------------------------------
def _program(found: FoundNetwork, batch: int | None) -> Any:
    import torch

    images = torch.from_numpy(found.images(batch or 2))
    shapes = ({0: torch.export.Dim("batch")},) if batch is None else None
    return torch.export.export(found.module, (images,), dynamic_shapes=shapes)


def _write_onnx(found: FoundNetwork, batch: int | None, file: Path) -> None:
    import torch

    written = torch.onnx.export(
        _program(found, batch), input_names=[INPUT], output_names=[OUTPUT], external_data=False, verbose=False
    )
    assert written is not None
    written.model.metadata_props[NOTE] = found.note()
    written.save(file)


def _write_program(found: FoundNetwork, batch: int | None, file: Path) -> None:
    import torch

    torch.export.save(_program(found, batch), file, extra_files={NOTE: found.note()})


def _write_torchscript(found: FoundNetwork, batch: int | None, file: Path) -> None:
    import torch

    jit: Any = torch.jit
    jit.save(jit.freeze(jit.trace(found.module, torch.from_numpy(found.images(2)))), file, {NOTE: found.note()})


def _run_program(subject: Subject) -> Call:
    import torch

    network: Any = torch.export.load(subject.onnx).module().forward
    return partial(network, *map(torch.from_numpy, subject.inputs))


def _run_torchscript(subject: Subject) -> Call:
    import torch

    jit: Any = torch.jit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = jit.load(subject.onnx)
    return partial(network, *map(torch.from_numpy, subject.inputs))


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


FORMATS: Mapping[str, Format] = {
    "onnx": Format(".onnx", "ONNX Runtime", "onnxruntime", _write_onnx, run_onnxruntime),
    "torchscript": Format(".pt", "TorchScript", "torch", _write_torchscript, _run_torchscript),
    "pt2": Format(".pt2", "torch.export", "torch", _write_program, _run_program),
}


def format_of(out: Path) -> str:
    """The format of a file by its suffix: a key of `FORMATS`, or `c` of what looks like a folder.

    Raises:
        ConfigError: it has the suffix of some other kind of file.
    """
    suffix = out.suffix.lower()
    for kind, form in FORMATS.items():
        if suffix == form.suffix:
            return kind
    if suffix.strip(".0123456789") and not out.is_dir():
        known = ", ".join(form.suffix for form in FORMATS.values())
        raise ConfigError(
            f"expected a folder for a C library, or a file that ends in {known}, got {out}; a folder of this name "
            "takes --format c"
        )
    return "c"


def _is_ours(file: Path) -> bool:
    """True of a file that `export_file` wrote: it has a note of ours. Nothing of the file is inflated or parsed: it may
    be anybody's."""
    if zipfile.is_zipfile(file):  # TorchScript, torch.export
        with zipfile.ZipFile(file) as packed:
            return any(name.rpartition("/")[2] == NOTE for name in packed.namelist())
    if not file.stat().st_size:
        return False
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(_ONNX_KEY) >= 0


# ---- the network ----------------------------------------------------------------------------------------------------
def open_found(source: Path, target: str | None = None) -> FoundNetwork:
    """The network of a bundle, or of a run of `chanas finetune`.

    Raises:
        CheckpointError: it is neither, has no weights, or is a whole supernet.
        TargetError: the bundle has no module for the target.
        DataError: the images that a run was trained on are not there.
    """
    from chanas.bundle.codesign import CoDesign
    from chanas.bundle.document import DOCUMENT
    from chanas.supernet.training.checkpoint import checkpoint_path
    from chanas.supernet.training.evaluate import SupernetEvaluator

    run = RunDirectory(source)
    if not checkpoint_path(run).is_file() or (run.bundle / DOCUMENT).is_file():
        bundle = CoDesign.load(source, target)
        bundle.check_weights("there is nothing to export; search with a supernet")
        assert bundle.preprocess is not None
        return FoundNetwork(
            bundle.architecture.key, bundle.torch_module(), bundle.class_names, bundle.preprocess, bundle
        )
    if target is not None:
        raise ConfigError("--target goes with bundles; a fine-tuned network has none yet")
    evaluator = SupernetEvaluator.load(run)
    only = evaluator.only
    if only is None:
        raise CheckpointError(
            f"{source} holds a whole supernet; name a bundle that was searched in it, or a network that "
            "`chanas finetune` left in its `finetuned`"
        )
    return FoundNetwork(only.key, evaluator.extract(only), evaluator.class_names, evaluator.preprocess(only.resolution))


def export_file(
    source: Path,
    out: Path,
    kind: str,
    target: str | None = None,
    batch: int | None = None,
    formats: Mapping[str, Format] = FORMATS,
) -> NetworkFile:
    """Write the network of a bundle, or of a run of `chanas finetune`, to a file of one of the formats.

    Its logits are compared with PyTorch's, in the file's own runtime, before it takes its place.

    Args:
        target: of the bundle; its module is what the file is timed beside. By default the first.
        batch: images at once that it takes; by default any number.

    Raises:
        ConfigError: the file has another suffix, is a folder, or was made by something else; or the batch is none.
        ModelError: a package is missing, or PyTorch's exporter does not take the network.
        MeasureError: the file computes something else; nothing was written.
        ChanasError: as `open_found` says, or the file cannot be written.
    """
    form = formats[kind]
    if batch is not None and (batch < 1 or kind == "torchscript"):
        raise ConfigError(
            "expected --batch of at least 1, of an onnx or pt2 file: TorchScript takes any number of images"
        )
    if out.suffix != form.suffix or out.is_dir():
        raise ConfigError(f"expected a file that ends in {form.suffix}, got {out}")
    if out.exists() and not _is_ours(out):
        raise ConfigError(f"{out} is there already and was not made by `chanas export`; name another file")
    found = open_found(source, target)
    with one_writer(out, other="name another place"), scratch_folder() as scratch:
        file = scratch / f"network{form.suffix}"  # by its suffix torch.export knows its own
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of PyTorch's about itself
                form.write(found, batch, file)
        except Exception as error:  # another project's exporter, whatever it raises
            raise ModelError(f"PyTorch wrote no {form.suffix} file: {describe(error, MAX_TEXT)}") from error
        max_error = _compare(form, found, batch, file)
        own_s, file_s, why_not = None, None, _why_not_timed(form, found.bundle, batch)
        if not why_not and found.bundle is not None:
            threads = found.bundle.target.num_threads
            own_s, file_s = time_beside(found.bundle, lambda image: form.run(Subject(None, file, [image], threads)))
        with replacing(out) as temporary:
            shutil.copyfile(file, temporary)
    return NetworkFile(out, found.key, form.runtime, max_error, own_s, file_s, why_not)


def _compare(form: Format, found: FoundNetwork, batch: int | None, file: Path) -> float | None:
    """The largest error of images in two calls; None where nothing here runs the file.

    Raises:
        MeasureError: it is too large.
    """
    import torch

    if not _is_installed(form.reader):
        return None
    images = found.images(NUM_IMAGES if batch is None else 2 * batch)
    with torch.inference_mode():
        expected = found.module(torch.from_numpy(images)).numpy()
        got = [
            outputs_of(form.run(Subject(None, file, [part], 1))())[0]
            for part in (images[: batch or 1], images[batch or 1 :])
        ]
    error = relative_error([np.concatenate(got)], [expected])
    if not error <= TOLERANCE:
        raise MeasureError(f"logits of the {form.suffix} file are {error:.2g} away from PyTorch's; nothing was written")
    return error


# ---- what it costs --------------------------------------------------------------------------------------------------
def _why_not_timed(form: Format, bundle: CoDesign | None, batch: int | None) -> str:
    if bundle is None:
        return "a fine-tuned network has no schedules yet; `chanas tune` finds some for a .pt2 or .onnx file"
    if not _is_installed(form.reader):
        return f"{form.runtime} is not installed (pip install 'chanas[bench]')"
    if bundle.target.gpu is not None:
        return "the bundle's module is for a GPU"
    if batch not in (None, 1):
        return "the bundle's module takes one image"
    return "" if bundle.runs_here else f"the bundle's module is for {bundle.target.device}"


def time_beside(bundle: CoDesign, make: Callable[[Any], Call]) -> tuple[float, float]:
    """Median seconds of the bundle's module and of what `make` gives for the same image: in turns, on equal threads."""
    import torch

    from chanas.devices.cores import limited_to
    from chanas.devices.timing import TimingSettings, time_in_turns

    size = bundle.architecture.resolution
    image = np.random.default_rng(0).standard_normal((1, 3, size, size), dtype=np.float32)
    with limited_to(bundle.target.num_threads), torch.inference_mode():
        calls = (bundle.inference(image), make(image))
        settings = TimingSettings(_ROUNDS, _MIN_ROUND_S)
        turns, clock = [[(call, ())] for call in calls], clock_of(bundle.target.num_threads)
        own, other = time_in_turns(turns, _NUM_WARM_UP, settings, clock)
    return own.seconds, other.seconds
