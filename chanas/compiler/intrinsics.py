"""Calls of ours in tensor expressions, which become other expressions in the compiler's last pass (`LowerIntrin`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import tirx


def register_intrinsic(name: str, description: str, lowerings: Mapping[str, Callable[[Any], Any]]) -> None:
    """Make a call known to the compiler, as one without effects that may be of vectors.

    Args:
        name: begins with `tirx.`.
        lowerings: what becomes of a call, by the kind of target; `default` is for all others.
    """
    from tvm.ir import _ffi_api

    _ffi_api.RegisterOp(name, description)
    tvm.ir.register_op_attr(name, "TCallEffectKind", int(tirx.CallEffectKind.Pure.value))
    tvm.ir.register_op_attr(name, "TVectorizable", True)
    tvm.ir.register_op_attr(name, "TScriptPrinterName", name.removeprefix("tirx."))
    for target, lower in lowerings.items():
        tirx.op.register_intrin_lowering(name, target=target, f=lower)
