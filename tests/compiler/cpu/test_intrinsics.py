"""chanas/compiler/cpu/intrinsics.py: what a program may call is known before it is read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import chanas

KNOWN = """
import tvm
from chanas.compiler.cpu.intrinsics import register_intrinsics
register_intrinsics()
register_intrinsics()
print(*tvm.ir.Op.list_op_names())
"""


def test_all_calls_of_ours_are_made_known() -> None:
    sources = (path.read_text(encoding="utf-8") for path in Path(chanas.__file__).parent.rglob("*.py"))
    ours = {name for source in sources for name in re.findall(r'"(tirx\.chanas_\w+)"', source)}
    said = subprocess.run([sys.executable, "-c", KNOWN], capture_output=True, text=True, check=True).stdout
    assert ours
    assert ours == {name for name in said.split() if name.startswith("tirx.chanas_")}
