"""Exported networks as WebAssembly: what node computes with them is what PyTorch computes."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

from chanas.core.arch import SearchSpace
from chanas.errors import TargetError
from chanas.export.c_library import export
from chanas.export.trials import Check
from chanas.prescheduler.codegen.c_toolchain import find_c_toolchain, search_path
from chanas.prescheduler.codegen.linkers import Tools
from chanas.prescheduler.measuring.local.compiler import Compiler

from ..bundle.test_codesign import HOST
from .test_c_library import make_bundle

needs_zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
PAGE = """
import { readFileSync } from "node:fs";
const module = await WebAssembly.compile(readFileSync("page.wasm"));
if (WebAssembly.Module.imports(module).length) throw new Error("it asks for something");
const { exports } = await WebAssembly.instantiate(module, {});
exports._initialize();
const [image, logits] = [exports.malloc(4 * 3 * 12 * 12), exports.malloc(4 * 5)];
new Float32Array(exports.memory.buffer, image, 3 * 12 * 12).fill(1);
console.log(exports.net_run(image, logits), exports.net_run(0, logits));
"""


@pytest.mark.slow
@needs_zig
@needs_node
@pytest.mark.usefixtures("one_compiler")
def test_node_runs_the_example_and_a_page_needs_nothing_beside_it(
    tiny_space: SearchSpace, tmp_path: Path, compiler: Compiler
) -> None:
    done = export(make_bundle(tiny_space, tmp_path, HOST, compiler), tmp_path / "net", target="wasm32")
    assert isinstance(done.check, Check)
    assert done.check.under == "node"
    assert done.check.max_error < 1e-4
    assert (done.folder / "wasi.mjs").is_file()
    readme = (done.folder / "README").read_text()
    (line,) = (line.strip() for line in readme.splitlines() if "mexec-model=reactor" in line)
    subprocess.run(line, shell=True, cwd=done.folder, env=search_path(), check=True)
    (done.folder / "page.mjs").write_text(PAGE)
    (done.folder / "net.wasm").rename(done.folder / "page.wasm")
    ran = subprocess.run(["node", "page.mjs"], cwd=done.folder, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["0", "1"]


def test_without_ziglang_a_line_says_what_brings_a_compiler() -> None:
    with pytest.raises(TargetError, match="pip install ziglang"):
        find_c_toolchain("wasm32-wasi", Tools(which=lambda _name: None, zig=lambda: None))
