"""Parts of tensor expressions that every processor's operators share: epilogues."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from chanas.operators.workload import Epilogue


def epilogue(kind: Epilogue, value: Any) -> Any:
    zero, three, six = (tirx.const(c, "float32") for c in (0.0, 3.0, 6.0))
    if kind == "relu":
        return te.max(value, zero)
    if kind == "none":
        return value
    gate = te.min(te.max(value + three, zero), six) * tirx.const(1.0 / 6.0, "float32")
    return gate if kind == "hsigmoid" else value * gate
