"""Networks of PyTorch: programs of `torch.export`.

PyTorch's own exporter makes ONNX models of them; PyTorch itself gives the answer to compare with."""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from chanas.core.arrays import Array
from chanas.devices.cores import limited_to
from chanas.errors import ModelError, describe
from chanas.files.scratch import scratch_folder
from chanas.files.writing import sha256_of
from chanas.models.sources.model import OpenedModel, TensorFacts, checked_facts, file_name, own_type
from chanas.models.sources.onnx_files import parse_onnx
from chanas.models.sources.program_archive import copy_program

_OPSET = 20
_ALMOST_ZERO = 1e-4  # scales of residual branches begin as 1e-4 (EfficientFormer), 1e-5 (CaiT) or 1e-6 (ConvNeXt)


def weights_digest(network: Any) -> str:
    """The SHA-256 of a network's weights, in order."""
    weights = hashlib.sha256()
    for value in network.state_dict().values():
        weights.update(value.numpy().tobytes())
    return weights.hexdigest()


def fill_zeros(network: Any) -> None:
    """Give weights that begin as zeros random values (ViT's last layer, scales of residual branches), also those that
    are almost zero: what depends on none of a network's weights proves nothing."""
    import torch

    for name, parameter in network.named_parameters():
        largest = parameter.abs().max() if parameter.numel() else 1.0
        if parameter.ndim > 1 and largest == 0:
            torch.nn.init.normal_(parameter, std=0.02)
        elif largest <= _ALMOST_ZERO and not name.endswith("bias"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)


def take_statistics(network: Any, shape: tuple[int, ...]) -> None:
    """Give batch normalisation the means and variances of random images, so that signals neither vanish nor grow in a
    network that was never trained. On one thread: another number sums in another order, to other weights."""
    import torch

    norms = [m for m in network.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [m.momentum for m in norms]
    for norm in norms:
        norm.momentum = 1.0
    with limited_to(1), torch.inference_mode():
        network.train()(torch.randn(2, *shape[1:]))
    network.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def open_exported(path: Path, exported: Path | None = None) -> OpenedModel:
    """A program that `torch.export.save` wrote; `exported` is the ONNX model that was made of it, if it was.

    Raises:
        ModelError: as `copy_program` says, or it is damaged, of another version of torch, or has operators that are not
            there.
    """
    import torch

    with scratch_folder() as scratch:
        copy = scratch / "program.pt2"
        copy_program(path, copy)
        try:
            with quiet():
                program = torch.export.load(copy)
        except Exception as error:  # the format's own errors are of many kinds
            raise ModelError(
                f"{path} is damaged or was written by another version of torch (here: {torch.__version__}; "
                f"{describe(error)}); export it again with this one"
            ) from error
    origin = {"kind": "torch.export", "name": path.name, "sha256": sha256_of(path), "torch": torch.__version__}
    proto = None if exported is None else parse_onnx(exported)
    return opened_program(file_name(path.stem), program, origin, proto)


def opened_program(
    name: str,
    program: Any,
    origin: dict[str, str],
    proto: Any = None,
    pictures: Mapping[str, Any] = MappingProxyType({}),
) -> OpenedModel:
    """A program of `torch.export` as an ONNX model: `proto`, or what PyTorch makes of it.

    Args:
        pictures: how its weights want pictures prepared.

    Raises:
        ModelError: a shape is open, what goes in or out is no tensor, it keeps state between calls, was exported for
            training, or PyTorch cannot export it.
    """
    import torch
    from torch.utils import _pytree as pytree

    inputs = _inputs(name, program)
    if proto is None:
        _check_inference(name, program)
        proto = _exported(name, program)
    network = program.module()

    def answer(arrays: Sequence[Array]) -> list[Array]:
        args, kwargs = call_arguments(program, arrays)
        # threads that wait for each other take twenty times as long on a busy machine
        with limited_to(1), torch.inference_mode():
            found = pytree.tree_leaves(network(*args, **kwargs))
        return [(v.float() if v.is_floating_point() else v).numpy().copy() for v in found]

    if len(proto.graph.input) != len(inputs):
        raise ModelError(
            f"{name} has {len(inputs)} inputs, and {len(proto.graph.input)} as PyTorch exports it to ONNX; export it "
            "without those that are not used"
        )
    named = tuple(TensorFacts(v.name, f.shape, f.dtype) for v, f in zip(proto.graph.input, inputs, strict=True))
    return OpenedModel(name, proto, named, answer, origin, program, outputs=_output_names(program), pictures=pictures)


def _output_names(program: Any) -> tuple[str, ...]:
    """Names of the outputs, in order, of a program that gives a dictionary: its keys, and numbers where these have
    several; empty for any other."""
    from torch.utils import _pytree as pytree

    given = program.call_spec.out_spec
    leaves, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(given.num_leaves)), given))
    paths = [[str(getattr(key, "key", getattr(key, "idx", key))) for key in path] for path, _ in leaves]
    is_named = all(path and isinstance(path[0], pytree.MappingKey) for path, _ in leaves)
    return tuple(".".join(path) for path in paths) if is_named else ()


def _exported(name: str, program: Any) -> Any:
    """The ONNX model that PyTorch's exporter makes of a program; without its optimizer, since what is known is computed
    where the model is read, in a small part of the time.

    Raises:
        ModelError: it cannot, or the program keeps state between calls.
    """
    import torch

    _write_out_masked_attention(program)
    try:
        with quiet():
            exported = torch.onnx.export(
                program, dynamo=True, opset_version=_OPSET, verbose=False, optimize=False, external_data=False
            )
        assert exported is not None
        proto = exported.model_proto
    except Exception as error:  # the exporter's own are of many kinds, with reports of thousands of lines
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__  # type: ignore[assignment]
        raise ModelError(
            f"PyTorch could not export {name} to ONNX ({describe(cause)}); write the network without what it names"
        ) from error
    _check_stateless(name, exported.exported_program)
    return proto


def _write_out_masked_attention(program: Any) -> None:
    """Write attention with a mask as products around PyTorch's own softmax, which gives zeros where a query has no key.

    Its exporter has a plain softmax there: NaN for masks of −∞, and for truths, which it makes the lowest finite
    number, shares of one by the number of keys."""
    import torch

    aten = torch.ops.aten
    for node in list(program.graph.nodes):
        if node.target is not aten.scaled_dot_product_attention.default:
            continue
        names = [argument.name for argument in node.target._schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        mask = given.get("attn_mask")
        if mask is None or given.get("dropout_p") or given.get("enable_gqa"):
            continue

        def call(operator: Any, *args: Any, before: Any = node) -> Any:
            with program.graph.inserting_before(before):
                made = program.graph.call_function(operator, args)
            made.meta["val"] = operator(*(a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args))
            return made

        query, dtype = given["query"], given["query"].meta["val"].dtype
        if mask.meta["val"].dtype == torch.bool:
            mask = call(aten.to.dtype, call(aten.where.Scalar, mask, 0.0, -math.inf), dtype)
        scale = given.get("scale") or query.meta["val"].shape[-1] ** -0.5
        scaled = call(aten.mul.Tensor, query, scale)
        scores = call(aten.matmul.default, scaled, call(aten.transpose.int, given["key"], -2, -1))
        shares = call(aten._safe_softmax.default, call(aten.add.Tensor, scores, mask), -1)
        node.replace_all_uses_with(call(aten.matmul.default, shares, given["value"]), propagate_meta=False)
        program.graph.erase_node(node)
    program.graph_module.recompile()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
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
