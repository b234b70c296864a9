"""The way in which a compiled network is loaded and called: one for each kind of device (`HardwareTarget.kind`). What
makes such networks is a back end's (`chanas.compiler.backends`)."""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chanas.core.arrays import Array, Float32Array
from chanas.core.target import HardwareTarget, differences
from chanas.devices import cuda_runtime
from chanas.devices.host import load_target
from chanas.devices.lean_tvm import torch_hidden
from chanas.errors import CheckpointError, TargetError
from chanas.files.scratch import scratch_folder
from chanas.operators.layout import layout_of

ImageShape = tuple[int, int, int]
_OF_THE_MACHINE = "vm.builtin."
"""Names of the virtual machine's own steps between kernels: memory, and shapes of it."""
_GO_ON = 0
"""The answer of an instrument of TVM's for a call that is to be made."""


Load = Callable[[Path, Sequence[Array], ImageShape, int, HardwareTarget], Callable[[Float32Array], Float32Array]]
"""A module with its arguments, its images [C, R, R] and number of classes, as a function from an image, or from as many
as the target takes at once, to logits."""


def _load_on_gpu(
    module: Path, parameters: Sequence[Float32Array], image_shape: ImageShape, num_classes: int, target: HardwareTarget
) -> Callable[[Float32Array], Float32Array]:
    return cuda_runtime.compiled_network(module, parameters, image_shape, batch=target.batch)


@dataclass(frozen=True)
class CompiledNetwork:
    """A loaded module: called with an image float32[C, R, R] it gives logits float32[classes].

    module  the compiled program by itself, on the image that is there: what a search measures
    """

    _predict: Callable[[Float32Array], Float32Array]
    module: Callable[[], Any]

    def __call__(self, image: Float32Array) -> Float32Array:
        return self._predict(image)


def load_main(module: Path, num_threads: int) -> Callable[..., Any]:
    """Load the function `main` of a compiled module; the first that a process loads sets its number of threads."""
    executable = _load_executable(module, num_threads)
    import tvm

    main: Callable[..., Any] = tvm.relax.VirtualMachine(executable, tvm.cpu())["main"]
    return main


def _load_executable(module: Path, num_threads: int) -> Any:
    os.environ.setdefault("TVM_NUM_THREADS", str(num_threads))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    with torch_hidden():
        import tvm

    # the loader gives back what it has under a name, whatever the file is by now: a bundle that was made anew
    with scratch_folder() as folder:
        copy = shutil.copyfile(module, folder / module.name)
        try:
            return tvm.runtime.load_module(str(copy))
        except RuntimeError as error:  # the dynamic linker's
            raise CheckpointError(f"{module} is no compiled module, or damaged; make it again") from error


TimedCalls = tuple[Any, list[tuple[str, float]]]
"""The outputs of `main`, and the name and the seconds of each kernel that it called, in order."""


def load_timed(module: Path, source: Path, target: HardwareTarget) -> Callable[..., TimedCalls]:
    """Load the kernels of a compiled module behind a `main` of instructions, which a clock can stand between.

    A compiled `main` calls its kernels unseen. `source`, the module before it was compiled, is lowered as for a build,
    but for its kernels: those are the compiled module's own.

    Raises:
        CheckpointError: the module is damaged, or the source calls other kernels.
    """
    executable = _load_executable(module, target.num_threads)
    import tvm
    from tvm.relax import vm_build

    lowered = tvm.ir.load_json(source.read_text(encoding="utf-8"))
    with target.tvm_target() as host, tvm.transform.PassContext(opt_level=3):
        lowered = tvm.relax.get_pipeline("default")(lowered)
        builder = tvm.relax.ExecBuilder()
        vm_build._vmcodegen(builder, lowered, "bytecode")
        linked = vm_build._vmlink(builder, host, ext_libs=list(executable.imports))
    try:
        machine = tvm.relax.VirtualMachine(linked.mod, tvm.cpu())
    except RuntimeError as error:  # a kernel is not there
        raise CheckpointError(f"{source} is of another program than {module.name}; make the folder again") from error
    starts: list[float] = []
    calls: list[tuple[str, float]] = []

    def watch(_function: Any, name: str, is_before: bool, _result: Any, *_arguments: Any) -> int:
        if is_before:
            starts.append(time.perf_counter())
        else:
            seconds = time.perf_counter() - starts.pop()
            if not name.startswith(_OF_THE_MACHINE):
                calls.append((name, seconds))
        return _GO_ON

    machine.set_instrument(watch)
    main = machine["main"]

    def run(*arguments: Any) -> TimedCalls:
        calls.clear()
        return main(*arguments), calls.copy()

    return run


def check_device(target: HardwareTarget, what: str, remedy: str) -> None:
    """Check that this machine's device is the one that `what` was compiled for.

    Raises:
        TargetError: it is another one, or has too few cores.
    """
    here = load_target(target.local_name, target.num_threads)
    if here.fingerprint != target.fingerprint:
        raise TargetError(
            f"{what} was compiled for {target.device} ({target.fingerprint}), this is {here.device} "
            f"({here.fingerprint}), another processor ({differences(target, here)}); {remedy}"
        )


def compiled_network(
    module: Path,
    parameters: Sequence[Float32Array],
    image_shape: ImageShape,
    num_classes: int,
    target: HardwareTarget,
) -> CompiledNetwork:
    """Load a compiled network.

    Args:
        module: the shared library.
        parameters: one array for each block, as `chanas.network.folding.pack_block` gives it.
        target: what the module was compiled for.
    """
    function = load_main(module, target.num_threads)
    import tvm

    arguments, layout = [tvm.runtime.tensor(p) for p in parameters], layout_of(target)
    # One input buffer for all calls: the module reads it in place, so an inference costs one small copy.
    buffer = tvm.runtime.tensor(np.zeros((image_shape[0], image_shape[1] * image_shape[2]), dtype=np.float32))
    view = np.from_dlpack(buffer).reshape(image_shape)

    def run(image: Float32Array) -> Float32Array:
        np.copyto(view, image)
        logits = np.asarray(np.from_dlpack(function(buffer, *arguments)), np.float32)
        return layout.unpack(logits, num_classes, 1)[0, :, 0]

    return CompiledNetwork(run, functools.partial(function, buffer, *arguments))


RUNTIMES: dict[str, Load] = {"llvm": compiled_network, "cuda": _load_on_gpu}
