"""Every package that chanas imports is declared, as a dependency or by an extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = {"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml", "tvm": "apache-tvm", "tvm_ffi": "apache-tvm-ffi"}
BY_HAND = {"ai-edge-litert", "litert-torch"}  # they want an older PyTorch and typing-extensions (docs/models.md)
SUPPLIED = {"pydantic_core": "pydantic", "starlette": "fastapi"}  # by another package that is declared


def imported() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "chanas").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"chanas"}


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    texts = [*project["dependencies"], *(text for extra in extras for text in extra)]
    declared = {re.split(r"[^A-Za-z0-9._-]", text)[0].lower() for text in texts}
    wanted = {NAMES.get(name, SUPPLIED.get(name, name)).lower().replace("_", "-") for name in imported()}
    assert wanted - declared == BY_HAND
