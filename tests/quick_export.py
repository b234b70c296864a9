"""`torch.export` in a third of the time, where a test process opens hundreds of programs.

PyTorch decomposes a program by a table of some two thousand operators, which it looks up anew each time, by namespace,
and changes for the while; no test registers operators. What comes out is the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_MODULES = ("torch._export.utils", "torch.export.exported_program", "torch.export.decomp_utils")
_COLLECT = "_collect_all_valid_cia_ops"


def remember_operators() -> None:
    """Have the table looked up once for each set of namespaces, where this process has loaded `torch.export`."""
    modules = [sys.modules[name] for name in _MODULES if name in sys.modules]
    if len(modules) == len(_MODULES) and all(hasattr(module, _COLLECT) for module in modules):
        collect = _remembered(getattr(modules[0], _COLLECT))
        for module in modules:
            setattr(module, _COLLECT, collect)
        _register_quickly()


def _remembered(collect: Callable[[], set[Any]]) -> Callable[[], set[Any]]:
    import torch

    known: dict[tuple[str, ...], set[Any]] = {}

    def collected() -> set[Any]:
        namespaces = tuple(torch.ops._dir)
        if namespaces not in known:
            known[namespaces] = collect()
        return known[namespaces]

    return collected


def _register_quickly() -> None:
    """Register implementations for dispatch keys, ten thousand a program, without annotations that are computed."""
    from torch._C import DispatchKey
    from torch._ops import OperatorBase

    register = OperatorBase.py_impl

    def py_impl(self: Any, key: Any) -> Callable[[Any], Any]:
        if not isinstance(key, DispatchKey) or key == DispatchKey.Python or key in self.py_kernels:
            taken: Callable[[Any], Any] = register(self, key)
            return taken

        def inner(function: Any) -> Any:
            self.py_kernels[key] = function
            self._dispatch_cache.clear()
            return function

        return inner

    OperatorBase.py_impl = py_impl  # type: ignore[method-assign]
