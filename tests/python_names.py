"""What a piece of Python that uses chanas names: is it there, does it take these keywords, does it say what it does?"""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any


def faults(source: str) -> list[str]:
    """One line for each name of chanas that isn't there, each keyword that its function doesn't take, and each called
    function or class without a docstring. Only names that are imported, and attributes of them, can be followed."""
    tree = ast.parse(source)
    known: dict[str, Any] = {}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "chanas":
            for alias in node.names:
                try:
                    known[alias.asname or alias.name] = _member(str(node.module), alias.name)
                except (ImportError, AttributeError):
                    found.append(f"line {node.lineno}: {node.module} has no {alias.name}")
    for node in ast.walk(tree):
        try:
            if isinstance(node, ast.Attribute):
                _resolved(node, known)
            elif isinstance(node, ast.Call):
                found += _faults_of_call(node, _resolved(node.func, known))
        except AttributeError as error:
            if isinstance(node, ast.Attribute):  # a call of it says the same again
                found.append(f"line {node.lineno}: {error}")
    return found


def _member(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        return importlib.import_module(f"{module}.{name}")


def _resolved(node: ast.expr, known: dict[str, Any]) -> Any:
    """The object behind `name` or `name.attribute` of modules and classes; None where that can't be told."""
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _resolved(node.value, known)
        if inspect.ismodule(owner) or inspect.isclass(owner):
            return getattr(owner, node.attr)
    return None


def _faults_of_call(node: ast.Call, called: Any) -> list[str]:
    if called is None or not callable(called):
        return []
    name, found = called.__qualname__, []
    if not inspect.getdoc(called):
        found.append(f"line {node.lineno}: {name} has no docstring")
    parameters = inspect.signature(called).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return found
    wrong = [k.arg for k in node.keywords if k.arg is not None and k.arg not in parameters]
    return [*found, *(f"line {node.lineno}: {name} takes no {argument}" for argument in wrong)]
