"""chanas/compiler/cpu/intrinsics.py: what a program may call is known before it is read; vectors made of other vectors'
numbers, or of few numbers again and again."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

import chanas
from chanas.compiler.cpu.intrinsics import repeated
from chanas.compiler.cpu.lowering import pipeline

from ..workbench import HOST

BLOCKS = 6
PROCESSORS = {"haswell": 8, "skylake-avx512": 16}
"""The lanes of their vectors."""


def repeating(num: int, lanes: int, target: Any, in_vectors: bool = True) -> Any:
    """Compiled: of each of some blocks of so many numbers the vector of these again and again."""
    x = te.placeholder((BLOCKS, num), name="x")
    y = te.compute((BLOCKS, lanes), lambda b, v: repeated(v, [x[b, i] for i in range(num)]), name="y")
    schedule = s_tir.Schedule(te.create_prim_func([x, y]))
    if in_vectors:
        schedule.vectorize(schedule.get_loops(schedule.get_sblock("y"))[1])
    return tvm.tirx.build(schedule.mod["main"], target, pipeline())


@pytest.mark.parametrize("num", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("in_vectors", [True, False])
def test_numbers_come_again_and_again(num: int, in_vectors: bool) -> None:
    x = np.arange(BLOCKS * num, dtype=np.float32).reshape(BLOCKS, num)
    lanes = 24 if num == 3 else 16
    found = tvm.runtime.tensor(np.zeros((BLOCKS, lanes), np.float32))
    repeating(num, lanes, HOST.tvm_target(), in_vectors)(tvm.runtime.tensor(x), found)
    np.testing.assert_array_equal(found.numpy(), np.tile(x, lanes // num))


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("num", [1, 2, 4, 8])
def test_neighbours_are_loaded_at_once(processor: str, num: int) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": processor})
    code = repeating(num, PROCESSORS[processor], target).inspect_source("s")
    assert re.search(r"v(broadcast|movup|movap|movddup)", code)
    assert not re.search(r"\bv(insertps|p?gather\w*)\b", code)


KNOWN = """
import tvm
import chanas.compiler.cpu.intrinsics
print(*tvm.ir.Op.list_op_names())
"""


def test_all_calls_of_ours_are_made_known() -> None:
    sources = (path.read_text(encoding="utf-8") for path in Path(chanas.__file__).parent.rglob("*.py"))
    ours = {name for source in sources for name in re.findall(r'"(tirx\.chanas_\w+)"', source)}
    said = subprocess.run([sys.executable, "-c", KNOWN], capture_output=True, text=True, check=True).stdout
    assert ours
    assert ours == {name for name in said.split() if name.startswith("tirx.chanas_")}
