"""chanas/compiler/cuda/programs.py: a program becomes one CUDA graph, and a library with machine code where
there is a driver (here one that does nothing but be there)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chanas.compiler.backends import schedule_space
from chanas.compiler.cuda.build import kernel_text
from chanas.compiler.cuda.graph import block_program, network_program
from chanas.compiler.cuda.nvrtc import compile_cubin, why_no_nvrtc
from chanas.compiler.cuda.programs import build_program, rewritten
from chanas.compiler.cuda.space import GPUSpace
from chanas.compiler.space import Point
from chanas.core.target import gpu_in_dtype
from chanas.operators.steps import device_workloads

from ..carried_out import num_launches
from ..cuda_cases import GPU
from ..workbench import NANO, NUM_CLASSES

ROOT = Path(__file__).resolve().parents[3]
REASON = why_no_nvrtc()
needs_nvrtc = pytest.mark.skipif(REASON is not None, reason=str(REASON))

# What TVM's CUDA runtime asks of a driver, all of it answered with CUDA_ERROR_NO_DEVICE.
DRIVER = "\n".join(
    f"int {name}() {{ return 100; }}"
    for name in (
        *("cuDeviceGetName", "cuFuncSetAttribute", "cuGetErrorName", "cuGetErrorString", "cuLaunchKernelEx"),
        *("cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload", "cuTensorMapEncodeTiled"),
    )
)
COMPILES = """
import ctypes, sys
from chanas.devices.cuda_runtime import load_runtime
from chanas.devices.lean_tvm import hide_torch
hide_torch()
import tvm  # before what its CUDA runtime needs can be found, as in a process that has done other things
ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)
load_runtime()
import numpy as np
from pathlib import Path
from chanas.compiler.cuda.graph import operator_program
from chanas.compiler.cuda.build import cuda_source, verify
from chanas.compiler.cuda.programs import compile_program
from chanas.compiler.backends import schedule_operator
from chanas.compiler.backends import schedule_space
from tests.compiler.cuda_cases import GPU, WORKLOADS
workload = WORKLOADS[1]
point = schedule_space(workload, GPU).sample(1, np.random.default_rng(0))[0]
import tvm_ffi
compiled = []
tvm_ffi.register_global_func("tvm_callback_cuda_compile", lambda code: compiled.append(code) or b"", override=True)
assert "kernel" in cuda_source(verify(schedule_operator(workload, point, GPU), GPU), GPU)
assert not compiled, "the text was wanted, not machine code"
compile_program(operator_program(workload, point, GPU), GPU, Path(sys.argv[1]))
"""


def test_a_whole_network_is_one_graph() -> None:
    blocks = NANO.largest.blocks(NANO, NUM_CLASSES)
    rng = np.random.default_rng(0)
    points = [[schedule_space(w, GPU).sample(1, rng)[0] for w in device_workloads(b, GPU)] for b in blocks]
    program = network_program(blocks, points, GPU)
    module = rewritten(program, GPU)
    (graph,) = (gv.name_hint for gv, _ in module.functions_items() if gv.name_hint.endswith("cuda_graph_capture"))
    assert num_launches(module, graph) == num_launches(program)
    assert num_launches(module) == 0


def with_tensor_cores(space: GPUSpace) -> Point:
    """A random point that uses them, if the operator can."""
    points = space.sample(8, np.random.default_rng(0))
    return max(points, key=lambda p: space.groups(p).get("mma", (0,)))


@needs_nvrtc
@pytest.mark.parametrize("dtype", ["f32", "f16", "tf32"])
def test_what_the_library_holds_compiles(dtype: str) -> None:
    """Every operator of a block with squeeze-excite: the kernels of a program are one text."""
    target = gpu_in_dtype(GPU, dtype)
    block = next(b for b in NANO.all_blocks(NUM_CLASSES) if b.use_se and b.has_expand)
    points = [with_tensor_cores(schedule_space(w, target)) for w in device_workloads(block, target)]
    executable = build_program(block_program(block, points, target, copies=1), target)
    (device,) = executable.mod.imports[0].imports
    cubin, figures = compile_cubin(kernel_text(device.inspect_source()), GPU.required_gpu.arch)
    assert cubin[:4] == b"\x7fELF"
    assert figures.registers > 0


@needs_nvrtc
@pytest.mark.skipif(shutil.which("gcc") is None, reason="a driver that does nothing is compiled with gcc")
def test_where_there_is_a_driver_the_library_holds_machine_code(tmp_path: Path) -> None:
    """TVM's CUDA runtime is loaded and asks for our compiler's cubin, of the target's architecture, and for none where
    only the text is wanted."""
    (tmp_path / "driver.c").write_text(DRIVER)
    driver, library = tmp_path / "libcuda.so.1", tmp_path / "kernel.so"
    build = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(driver), str(tmp_path / "driver.c")]
    subprocess.run(build, check=True)
    command = [sys.executable, "-c", COMPILES, str(library), str(driver)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    content = library.read_bytes()
    assert b".text.kernel0_kernel" in content
    assert b"sm_90" in content
