"""Weights of a network of PyTorch in a file: tensors by name, and nothing that could run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from chanas.errors import CheckpointError, one_line

SAFETENSORS = ".safetensors"
_NESTED = ("state_dict", "model")  # names under which training scripts keep the weights beside their own state
_MAX_TEXT, _SHOWN = 80, 3


def read_tensors(path: Path) -> Mapping[str, Any]:
    """The content of a file by its own names: `.safetensors`, or what torch.save wrote, of which nothing but tensors
    and plain containers is read.

    Raises:
        CheckpointError: it is not there, is damaged, holds code, or has no names.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; expected a file of weights")
    content: Any
    if path.suffix == SAFETENSORS:
        from safetensors.torch import load_file

        try:
            content = load_file(path)
        except Exception as error:  # the format's own are of many kinds
            raise CheckpointError(
                f"{path} is not a whole file of safetensors ({one_line(error, _MAX_TEXT)})"
            ) from error
    else:
        content = _of_torch(path)
    for name in _NESTED:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
            break
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise CheckpointError(f"expected tensors by name in {path}, got {type(content).__name__}")
    return content


def _of_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of pickle protocols, before it refuses them
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes may lead torch's reader to any
        if type(error).__name__ == "UnpicklingError":
            raise CheckpointError(
                f"{path} holds more than tensors, so that opening it might run code, or is damaged: it was not opened; "
                f"expected what torch.save writes of a state_dict ({one_line(error, _MAX_TEXT)})"
            ) from None
        raise CheckpointError(f"{path} is not a whole file of torch.save ({one_line(error, _MAX_TEXT)})") from error


def checked_tensor(path: Path, name: str, value: Any) -> Tensor:
    """A value of a file as float32, if it is numbers that are finite.

    Raises:
        CheckpointError: it is none.
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise CheckpointError(f"expected floating-point numbers as {name} in {path}, got {type(value).__name__}")
    if not bool(value.isfinite().all()):
        raise CheckpointError(f"{name} in {path} has values that are no finite numbers")
    return value.float()


def differences(tensors: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Names that are missing, surplus or misshapen among tensors, beside the shapes that are expected; axes of one
    number do not count. Kinds without any are left out."""
    misshapen = [
        f"{name} {list(tensors[name].shape)} instead of {list(shape)}"
        for name, shape in shapes.items()
        if name in tensors and [n for n in tensors[name].shape if n != 1] != [n for n in shape if n != 1]
    ]
    found = {
        "missing": [name for name in shapes if name not in tensors],
        "surplus": [name for name in tensors if name not in shapes],
        "misshapen": misshapen,
    }
    return {what: names for what, names in found.items() if names}


def describe_differences(found: Mapping[str, Sequence[str]]) -> str:
    """`2 missing (fc.weight, fc.bias), 1 surplus (head.weight)`"""
    return ", ".join(f"{len(names)} {what} ({_some(names)})" for what, names in found.items())


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
