"""Networks of PyTorch: programs of `torch.export` in files, and those of torchvision by name (random weights)."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    not_float32,
    sha256_of,
    unknown_operators,
)

_SIZES = {"inception_v3": 299}
_SIZE = 224
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
    loggers = [logging.getLogger(n) for n in ("torch", "torch.export", "torch._export")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        program = torch.export.load(path)
    except Exception as error:  # the format's own errors are of many kinds
        raise ModelError(
            f"{path} is damaged or was written by another version of torch (here: {torch.__version__}; "
            f"{describe(error, _MAX_TEXT)}); export it again with this one"
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
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
    """A program of `torch.export` as a Relax module.

    Raises:
        ModelError: a shape is open, what goes in or out is no tensor, it computes in another type than float32 or was
            exported for training, or an operator is not there.
    """
    import torch
    from torch.utils import _pytree as pytree
    from tvm.relax.frontend.torch import from_exported_program

    inputs = _inputs(name, program)
    _check_inference(name, program)
    _check_dtypes(name, program, (torch.float16, torch.bfloat16))
    network = program.module()

    def answer(arrays: Sequence[Array]) -> list[Array]:
        args, kwargs = call_arguments(program, arrays)
        with torch.inference_mode():
            return [value.numpy() for value in pytree.tree_leaves(network(*args, **kwargs))]

    try:
        decomposed = program.run_decompositions()
        _check_operators(name, decomposed)
        module = from_exported_program(
            decomposed, keep_params_as_input=False, no_bind_return_tuple=False, run_ep_decomposition=False
        )
    except ModelError:
        raise
    except Exception as error:  # the importer asserts
        _check_dtypes(name, program, (torch.float64,))  # some of what is done in it can be imported
        raise ModelError(
            f"{name} could not be imported ({describe(error, _MAX_TEXT)}); export it in another way"
        ) from error
    return OpenedModel(name, module, inputs, answer, origin, program)


def call_arguments(program: Any, arrays: Sequence[Array]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Arguments, by place and by name, that a program's module takes its inputs in: they may lie in dictionaries."""
    import torch
    from torch.utils import _pytree as pytree

    tensors = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
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
        facts.append(TensorFacts(input_name, tuple(value.shape), str(value.dtype).removeprefix("torch.")))
    return checked_facts(facts, name)


def _check_dtypes(name: str, program: Any, dtypes: Collection[Any]) -> None:
    """
    Raises:
        ModelError: the network computes in one of these types; names the first place.
    """
    for node in program.graph.nodes:
        dtype = getattr(node.meta.get("val"), "dtype", None)
        if node.op == "call_function" and dtype in dtypes:
            raise not_float32(name, node.name, str(dtype).removeprefix("torch."))


def _check_inference(name: str, program: Any) -> None:
    """Refuse networks that were exported for training, with layers whose outputs differ from call to call.

    Raises:
        ModelError: there is such a layer; names the first.
    """
    for node in program.graph.nodes:
        parameters = getattr(getattr(node.target, "_schema", None), "arguments", ())
        given = dict(zip((p.name for p in parameters), node.args, strict=False)) | dict(node.kwargs)
        if given.get("train") is True or given.get("training") is True:
            raise ModelError(
                f"{name} was exported for training ({node.target.__name__} at {node.name}); call eval() on the network "
                "before it is exported"
            )


def _check_operators(name: str, program: Any) -> None:
    """Refuse operators that TVM's importer does not know, by name and node.

    Raises:
        ModelError: there is one.
    """
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    known = ExportedProgramImporter().convert_map
    called = [node for node in program.graph.nodes if node.op == "call_function"]
    missing = [(n.target.__name__, n.name) for n in called if n.target.__name__ not in known]
    if missing:
        raise ModelError(f"{unknown_operators(name, missing)}; write the network without")
