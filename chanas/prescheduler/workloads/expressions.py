"""Parts of tensor expressions that every processor's operators share: the function of an operator, and epilogues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from chanas.operators.workload import Epilogue


@dataclass(frozen=True)
class OperatorGraph:
    """An operator's function: its arguments in call order (the output last) before any scheduling."""

    arguments: tuple[Any, ...]
    output: Any


def epilogue(kind: Epilogue, value: Any) -> Any:
    zero, three, six = (tirx.const(c, "float32") for c in (0.0, 3.0, 6.0))
    if kind == "relu":
        return te.max(value, zero)
    if kind == "none":
        return value
    gate = te.min(te.max(value + three, zero), six) * tirx.const(1.0 / 6.0, "float32")
    return gate if kind == "hsigmoid" else value * gate
