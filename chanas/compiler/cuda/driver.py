"""TVM's CUDA runtime on a machine without a driver: it is what puts machine code into libraries, and loads only where a
driver does. So a library is made that stands there, and answers everything with the error that there is no GPU.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from chanas.compiler.toolchains import CrossLinker, required_linker
from chanas.devices.cuda_runtime import load_cudart, load_tvm_cuda
from chanas.devices.lean_tvm import torch_hidden
from chanas.errors import TargetError, one_line
from chanas.files.scratch import scratch_folder

_FACTORY = "ffi.Module.create.cuda"
_DRIVER = "libcuda.so.1"
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE (CUDA Driver API reference, "Data types used by CUDA driver")
# Of the driver what TVM's runtime calls.
_FUNCTIONS = (
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)


def enable_machine_code() -> None:
    """Put machine code for a GPU into libraries that are built in this process from now on, with or without a GPU here.

    Raises:
        TargetError: CUDA's runtime library is not installed, or TVM's does not load with it.
    """
    with torch_hidden():
        import tvm
    if tvm.get_global_func(_FACTORY, allow_missing=True) is not None:
        return
    load_cudart()
    with scratch_folder() as folder:
        ctypes.CDLL(str(_driver(folder)), mode=ctypes.RTLD_GLOBAL)  # what is loaded is known by its name from then on
    try:
        load_tvm_cuda()
    except (OSError, RuntimeError) as error:
        raise TargetError(
            f"TVM's CUDA runtime could not be loaded ({one_line(error, 200)}); its wheel for this "
            "platform has one where GPUs can be built for"
        ) from error


def _driver(folder: Path) -> Path:
    """A driver that says of everything that there is no device."""
    import tvm

    source, objects, library = (folder / name for name in ("driver.ll", "driver.o", _DRIVER))
    source.write_text("\n".join(f"define i32 @{name}() {{ ret i32 {_NO_DEVICE} }}" for name in _FUNCTIONS))
    tvm.runtime.load_module(str(source)).write_to_file(str(objects))
    linker = required_linker("")
    named = ("-soname", _DRIVER) if linker.name == "ld" else (f"-Wl,-soname,{_DRIVER}", "-nostdlib")
    CrossLinker(linker.name, linker.command, named).link([objects], library)
    return library
