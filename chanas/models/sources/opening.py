"""Finished networks as users bring them: an ONNX file, a program of `torch.export`, a network of a library, or one that
a search has found.

Each becomes an ONNX model with its weights inside, and keeps a way to ask the framework that it came from for the right
answer. Pickles are refused before anything of them is read.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import zipfile
from pathlib import Path

from chanas.bundle import document, tuned
from chanas.bundle.tuned import LIBRARIES
from chanas.errors import ModelError
from chanas.files.run import RunDirectory
from chanas.models.sources.model import OpenedModel, Shapes, check_fits

PROGRAM = ".pt2"
KNOWN = (
    f"FILE.onnx, FILE.pt2 (torch.export), {', '.join(f'{library}:NAME' for library in LIBRARIES)}, or the folder of a "
    "bundle or run"
)
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin")
_KERAS = 'load it with Keras 3 and write it with model.export("FILE.onnx", format="onnx")'
_WAYS = {
    ".tflite": "convert it with `python -m tf2onnx.convert --opset 17 --tflite FILE.tflite --output FILE.onnx`",
    ".h5": _KERAS,
    ".hdf5": _KERAS,
    ".keras": _KERAS,
    ".pb": "convert it with `python -m tf2onnx.convert --saved-model FOLDER --output FILE.onnx` (--graphdef for a "
    "frozen graph)",
    ".pdmodel": "convert it with paddle2onnx",
    ".mlmodel": "write it as ONNX with what it was trained with",
    ".mlpackage": "write it as ONNX with what it was trained with",
    ".safetensors": "it holds weights alone: load them into the network and save that with torch.export.save",
}
"""Ways to ONNX from files of other kinds, by their suffix."""
_SAVED_MODEL = "saved_model.pb"


def open_model(
    source: str | Path, shapes: Shapes | None = None, weights: Path | None = None, exported: Path | None = None
) -> OpenedModel:
    """Open a network by its file, by `torchvision:NAME` or `timm:NAME`, or by the folder of its bundle or run.

    Args:
        shapes: of inputs by their names, for those that the file leaves open; of a library's network, `image`.
        weights: of a library's network, a state dict; random ones without it.
        exported: the ONNX file that PyTorch has made of a program already; without it that is done here.

    Raises:
        ModelError: it is missing, damaged, a pickle, too large, has open shapes, or operators that are not there.
        CheckpointError: the weights are missing, damaged, or those of another network; or the run has no bundle, or a
            damaged one.
    """
    shapes = shapes or {}
    opened = _opened(source, shapes, weights, exported)
    return dataclasses.replace(opened, origin={"source": str(source), **opened.origin}, shapes=shapes)


def library_of(source: str | Path) -> str | None:
    """The library that makes a network of that name; None of a file."""
    library, colon, _ = str(source).partition(":")
    return library if colon and library in LIBRARIES else None


def is_searched(source: str | Path) -> bool:
    """True of what a stage of a run, or `chanas tune`, has left; where it is no bundle, `bundle_at` says why."""
    run = RunDirectory(source)
    documents = (folder / document.DOCUMENT for folder in (run.root, run.bundle))
    left = (*documents, run.root / tuned.DOCUMENT, run.bundles, run.records, run.supernet / "checkpoint.json")
    return any(place.exists() for place in left)


def check_library(source: str | Path) -> None:
    """Refuse a network of a library that is not there.

    Raises:
        ModelError: the library is not installed.
    """
    library = library_of(source)
    if library is not None and importlib.util.find_spec(library) is None:
        raise ModelError(f"{source} needs {library}, which is not installed: pip install {library}")


def _opened(source: str | Path, shapes: Shapes, weights: Path | None, exported: Path | None) -> OpenedModel:
    check_library(source)
    library = library_of(source)
    if library is not None:
        from chanas.models.sources.libraries import open_library_network

        return open_library_network(library, str(source).removeprefix(f"{library}:"), shapes, weights)
    if weights is not None:
        raise ModelError(f"{source} has weights of its own; --weights is for {' and '.join(LIBRARIES)}:NAME")
    if is_searched(source):
        from chanas.models.sources.bundles import open_bundle

        return open_bundle(source, shapes)
    path = Path(source)
    check_kind(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ModelError(f"expected a network as {KNOWN}; {path} {what}")
    check_no_pickle(path)
    check_fits(path, path.stat().st_size)
    if path.suffix == ".onnx":
        from chanas.models.sources.onnx_models import open_onnx

        return open_onnx(path, shapes)
    if path.suffix == PROGRAM:
        from chanas.models.sources.torch_models import open_exported

        opened = open_exported(path, exported)
        taken = {facts.name: facts.shape for facts in opened.inputs}
        for name, shape in shapes.items():
            if taken.get(name) != tuple(shape):
                inputs = ", ".join(facts.describe() for facts in opened.inputs)
                raise ModelError(f"{path} was exported for {inputs}; leave out --shape {name}, or export it anew")
        return opened
    raise ModelError(f"expected a network as {KNOWN}, got {path.name}")


def check_kind(path: Path) -> None:
    """Refuse networks of other kinds by name.

    Raises:
        ModelError: it is one; says how ONNX is made of it.
    """
    way = _WAYS.get(path.suffix.lower())
    if way is None and (path / _SAVED_MODEL).is_file():
        way = _WAYS[".pb"]
    if way is not None:
        raise ModelError(f"expected a network as {KNOWN}, got {path}: {way}")


def check_no_pickle(path: Path) -> None:
    """Refuse a pickle by its name and by its first bytes.

    Raises:
        ModelError: it is one.
    """
    with open(path, "rb") as file:
        start = file.read(2)
    is_pickle = path.suffix in _PICKLES or (start[:1] == b"\x80" and start[1:] <= b"\x05")
    if zipfile.is_zipfile(path) and path.suffix != PROGRAM:
        with zipfile.ZipFile(path) as archive:
            is_pickle |= any(name.endswith(".pkl") for name in archive.namelist())
    if is_pickle:
        raise ModelError(
            f"{path} is a pickle (what torch.save writes), which may run any code when it is opened; save the network "
            "with torch.export.save (.pt2) or torch.onnx.export (.onnx) instead"
        )
