"""Networks of PyTorch: programs of `torch.export` in files, and those of torchvision by name (random weights).

PyTorch's own exporter makes ONNX models of them; PyTorch itself gives the answer to compare with."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chanas.devices.cores import limited_to
from chanas.errors import ModelError, describe, unknown_name
from chanas.prescheduler.models.sources.model import (
    IMAGE,
    Array,
    OpenedModel,
    Shapes,
    TensorFacts,
    checked_facts,
    file_name,
    own_type,
    sha256_of,
)

_SIZES = {"inception_v3": 299}
_SIZE = 224
_OPSET = 20
_MAX_TEXT = 160


def open_torchvision(name: str, shapes: Shapes) -> OpenedModel:
    """A classifier of torchvision with random weights: one image of the size that it is made for, or as `shapes` says.

    Raises:
        ModelError: torchvision has no such network, or it cannot be exported for such an image.
    """
    import torch
    import torchvision

    known = torchvision.models.list_models(torchvision.models)
    if name not in known:
        raise ModelError(unknown_name("network of torchvision", name, known))
    size = _SIZES.get(name, _SIZE)
    shape = shapes.get(IMAGE, (1, 3, size, size))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        options = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
        network = torchvision.models.get_model(name, weights=None, **options).eval()
        try:
            fill_zeros(network)
            take_statistics(network, shape)
            program = torch.export.export(network, (torch.zeros(shape),))
        except Exception as error:  # whatever a network's own code raises on a shape that it was not made for
            raise ModelError(
                f"torchvision's {name} does not take an image {list(shape)} ({describe(error, _MAX_TEXT)}); give "
                "another one with --shape"
            ) from error
    weights = hashlib.sha256()
    for value in network.state_dict().values():
        weights.update(value.numpy().tobytes())
    origin = {
        "kind": "torchvision",
        "name": name,
        "sha256": weights.hexdigest(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
    }
    return opened_program(name, program, origin)


def fill_zeros(network: Any) -> None:
    """Give weights that begin as zeros random values (ViT's last layer): outputs of zeros prove nothing."""
    import torch

    for parameter in network.parameters():
        if parameter.ndim > 1 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)


def take_statistics(network: Any, shape: tuple[int, ...]) -> None:
    """Give batch normalisation the means and variances of random images, so that signals neither vanish nor grow in a
    network that was never trained. On one thread: another number sums in another order, to other weights."""
    import torch

    norms = [m for m in network.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    momenta = [m.momentum for m in norms]
    for norm in norms:
        norm.momentum = 1.0
    with limited_to(1), torch.inference_mode():
        network.train()(torch.randn(2, *shape[1:]))
    network.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def open_exported(path: Path) -> OpenedModel:
    """A program that `torch.export.save` wrote.

    Raises:
        ModelError: it is damaged, of another version of torch, holds pickles, or has operators that are not there.
    """
    import torch

    for name in _pickled(path):
        raise ModelError(
            f"{path} holds a pickle ({name}), which may run any code when it is opened; export the network with plain "
            "tensors as weights and inputs"
        )
    try:
        with _quiet():
            program = torch.export.load(path)
    except Exception as error:  # the format's own errors are of many kinds
        raise ModelError(
            f"{path} is damaged or was written by another version of torch (here: {torch.__version__}; "
            f"{describe(error, _MAX_TEXT)}); export it again with this one"
        ) from error
    origin = {"kind": "torch.export", "name": path.name, "sha256": sha256_of(path), "torch": torch.__version__}
    return opened_program(file_name(path.stem), program, origin)


def _pickled(path: Path) -> Iterator[str]:
    """Names of parts of an archive that torch would open with pickle.

    Raises:
        ModelError: it is no such archive.
    """
    import torch

    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            for name in names:
                if name.endswith("_config.json"):
                    for weight, entry in json.loads(archive.read(name)).get("config", {}).items():
                        if entry.get("use_pickle", True):
                            yield weight
                elif "/sample_inputs/" in name:
                    try:
                        torch.load(io.BytesIO(archive.read(name)), weights_only=True)
                    except Exception:  # an unsafe part: torch would then read it without the guard
                        yield name
                elif name.endswith((".pkl", "serialized_state_dict.pt", "serialized_constants.pt")):
                    yield name
            if not any(name.endswith("models/model.json") for name in names):
                raise ModelError(f"{path} is no program of torch.export (expected models/model.json in it)")
    except (zipfile.BadZipFile, ValueError, AttributeError) as error:
        raise ModelError(
            f"{path} is no program of torch.export, or cut short ({describe(error, _MAX_TEXT)}); export it again"
        ) from error


def opened_program(name: str, program: Any, origin: dict[str, str]) -> OpenedModel:
    """A program of `torch.export` as an ONNX model.

    Raises:
        ModelError: a shape is open, what goes in or out is no tensor, it keeps state between calls, was exported for
            training, or PyTorch cannot export it.
    """
    import torch
    from torch.utils import _pytree as pytree

    inputs = _inputs(name, program)
    _check_inference(name, program)
    network = program.module()

    def answer(arrays: Sequence[Array]) -> list[Array]:
        args, kwargs = call_arguments(program, arrays)
        # threads that wait for each other take twenty times as long on a busy machine
        with limited_to(1), torch.inference_mode():
            found = pytree.tree_leaves(network(*args, **kwargs))
        return [(v.float() if v.is_floating_point() else v).numpy().copy() for v in found]

    proto = _exported(name, program)
    if len(proto.graph.input) != len(inputs):
        raise ModelError(
            f"{name} has {len(inputs)} inputs, and {len(proto.graph.input)} as PyTorch exports it to ONNX; export it "
            "without those that are not used"
        )
    named = tuple(TensorFacts(v.name, f.shape, f.dtype) for v, f in zip(proto.graph.input, inputs, strict=True))
    return OpenedModel(name, proto, named, answer, origin, program)


def _exported(name: str, program: Any) -> Any:
    """The ONNX model that PyTorch's exporter makes of a program; without its optimizer, since what is known is computed
    where the model is read, in a small part of the time.

    Raises:
        ModelError: it cannot, or the program keeps state between calls.
    """
    import torch

    try:
        with _quiet():
            exported = torch.onnx.export(program, dynamo=True, opset_version=_OPSET, verbose=False, optimize=False)
        assert exported is not None
        proto = exported.model_proto
    except Exception as error:  # the exporter's own are of many kinds, with reports of thousands of lines
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__  # type: ignore[assignment]
        raise ModelError(
            f"PyTorch could not export {name} to ONNX ({describe(cause, _MAX_TEXT)}); write the network without "
            "what it names"
        ) from error
    _check_stateless(name, exported.exported_program)
    return proto


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what PyTorch's exporters log, print and warn about in the body."""
    loggers = [logging.getLogger(n) for n in ("torch", "torch.export", "torch._export", "torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def call_arguments(program: Any, arrays: Sequence[Array]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Arguments, by place and by name, that a program's module takes its inputs in: they may lie in dictionaries. The
    arrays are copied: a network may write to what it is given."""
    import torch
    from torch.utils import _pytree as pytree

    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    dtypes = [values[given].dtype for given in program.graph_signature.user_inputs]
    tensors = [torch.from_numpy(np.array(a)).to(dtype) for a, dtype in zip(arrays, dtypes, strict=True)]
    args, kwargs = pytree.tree_unflatten(tensors, program.call_spec.in_spec)
    return args, kwargs


def _inputs(name: str, program: Any) -> tuple[TensorFacts, ...]:
    """The inputs of a program.

    Raises:
        ModelError: a shape is open, or something that goes in or comes out is no tensor.
    """
    import torch

    signature, facts = program.graph_signature, []
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for given in (*signature.user_inputs, *signature.user_outputs):
        if not isinstance(given, str) or not isinstance(values.get(given), torch.Tensor):
            raise ModelError(f"{name} takes or gives {given!r}, which is no tensor; export it with tensors alone")
    for input_name in signature.user_inputs:
        value = values[input_name]
        if not all(isinstance(extent, int) for extent in value.shape):
            raise ModelError(
                f"input {input_name} of {name} has an open shape {tuple(map(str, value.shape))}; export the network "
                "without dynamic_shapes: it is tuned for one"
            )
        dtype = own_type(str(value.dtype).removeprefix("torch."))
        facts.append(TensorFacts(input_name, tuple(value.shape), dtype))
    return checked_facts(facts, name)


def _check_inference(name: str, program: Any) -> None:
    """Refuse networks that were exported for training, with layers whose outputs differ from call to call.

    Raises:
        ModelError: there is such a layer; names the first.
    """
    for node in program.graph.nodes:
        parameters = getattr(getattr(node.target, "_schema", None), "arguments", ())
        given = dict(zip((p.name for p in parameters), node.args, strict=False)) | dict(node.kwargs)
        # statistics of a batch: without a memory of earlier ones they are what the network computes in any mode
        learns = given.get("training") is True and given.get("running_mean", True) is not None
        if given.get("train") is True or learns:
            raise ModelError(
                f"{name} was exported for training ({node.target.__name__} at {node.name}); call eval() on the network "
                "before it is exported"
            )


def _check_stateless(name: str, decomposed: Any) -> None:
    """Refuse networks whose outputs depend on earlier calls.

    Args:
        decomposed: the program without operators that write in place, what they wrote to in its signature.

    Raises:
        ModelError: a call writes to a buffer; names the first.
    """
    for written in decomposed.graph_signature.buffers_to_mutate.values():
        raise ModelError(
            f"{name} writes to {written} in each call, so that its outputs depend on earlier ones; write the "
            "network with such a state as an input and an output"
        )
