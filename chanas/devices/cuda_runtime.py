"""A GPU that programs run on: TVM's CUDA runtime, arrays on the device, and times taken by the device's own events."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from chanas.devices.lean_tvm import torch_hidden
from chanas.devices.timing import Call
from chanas.errors import TargetError, one_line
from chanas.files.scratch import scratch_folder

# What is written to push everything else out of the L2 cache, as a multiple of it.
_FLUSH_FACTOR = 2
# The longest that a device is kept busy while the host makes calls ready, in flushes of some 30 us.
_MAX_AHEAD = 64


def load_cudart() -> None:
    """Load CUDA's runtime library, which lies where only Python packages look.

    Raises:
        TargetError: it is not there.
    """
    try:
        importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib("cudart")
    except (ImportError, RuntimeError) as error:
        raise TargetError(
            f"CUDA's runtime library was not found ({one_line(error, 200)}); "
            "`pip install nvidia-cuda-runtime cuda-bindings`"
        ) from error


def load_tvm_cuda() -> None:
    """Load TVM's CUDA runtime, which TVM does itself only where CUDA's runtime library was there before TVM was.

    Raises:
        OSError, RuntimeError: it is not there, or does not load.
    """
    import tvm
    from tvm_ffi.libinfo import load_lib_ctypes

    load_lib_ctypes("tvm", "tvm_runtime_cuda", "RTLD_LOCAL", extra_lib_paths=tvm.libinfo.package_lib_paths())


def load_runtime() -> None:
    """Load TVM with its CUDA runtime, which needs CUDA's.

    Raises:
        TargetError: one of them is not there.
    """
    load_cudart()
    with torch_hidden():
        import tvm

    if tvm.get_global_func("runtime.timer.cuda", allow_missing=True) is not None:
        return
    try:
        load_tvm_cuda()
    except (OSError, RuntimeError) as error:
        raise TargetError(
            "TVM's CUDA runtime could not be loaded: it needs the driver (libcuda.so.1) and CUDA 13's runtime library "
            "(libcudart.so.13); `nvidia-smi` shows whether the driver works"
        ) from error


class CUDADevice:
    """The first GPU that CUDA shows.

    Args:
        l2_bytes: size of its L2 cache; without one `flush` does nothing.
    """

    def __init__(self, l2_bytes: int = 0) -> None:
        load_runtime()
        import tvm

        self._device = tvm.cuda(0)
        if not self._device.exist:
            raise TargetError("CUDA shows no GPU; `nvidia-smi` and CUDA_VISIBLE_DEVICES tell which there are")
        self._cuda = importlib.import_module("cuda.bindings.runtime")
        self._flushed_bytes = _FLUSH_FACTOR * l2_bytes
        self._flushed: Any = None
        self._events: list[tuple[Any, Any]] = []
        self._ahead = 1

    def tensor(self, array: Any) -> Any:
        """A copy of an array on the device."""
        import tvm

        return tvm.runtime.tensor(array, self._device)

    def load(self, library: Path | str) -> Any:
        """The virtual machine of a compiled program: `machine["main"](*arguments)`."""
        import tvm
        from tvm import relax

        return relax.VirtualMachine(tvm.runtime.load_module(str(library)), self._device)

    def flush(self) -> None:
        """Fill the L2 cache with something else, before whatever is called next. Does not wait for it."""
        if not self._flushed_bytes:
            return
        if self._flushed is None:
            self._flushed = self._done(self._cuda.cudaMalloc(self._flushed_bytes))
        self._done(self._cuda.cudaMemsetAsync(self._flushed, 0, self._flushed_bytes, 0))

    def seconds(self, calls: Iterable[Call], cold: bool, queued: bool = True) -> float:
        """Seconds that the device takes for the calls, by events before and after each one.

        Cold: the L2 cache is flushed before each, outside its time.
        Queued: the device has something else to do first, so that each call waits for it and not it for the host;
        without, what the host takes to make a call is part of its time wherever the device has to wait.
        """
        used, late = 0, False
        for function, arguments in calls:
            if used == 0 and queued:
                self._keep_busy()
                if not cold and self._flushed_bytes:
                    function(*arguments)  # finds nothing in the cache, and is not timed
            if used == len(self._events):
                self._events.append((self._event(), self._event()))
            before, after = self._events[used]
            used += 1
            if cold:
                self.flush()
            self._done(self._cuda.cudaEventRecord(before, 0))
            function(*arguments)
            self._done(self._cuda.cudaEventRecord(after, 0))
            late = late or int(self._cuda.cudaEventQuery(before)[0]) == 0
        self._done(self._cuda.cudaDeviceSynchronize())
        if late and queued:  # the device was there before a call was: it gets more to do the next time
            self._ahead = min(2 * self._ahead, _MAX_AHEAD)
        elapsed_ms: float = sum(self._done(self._cuda.cudaEventElapsedTime(*pair)) for pair in self._events[:used])
        return 1e-3 * elapsed_ms

    def _keep_busy(self) -> None:
        for _ in range(self._ahead):
            self.flush()

    def _event(self) -> Any:
        return self._done(self._cuda.cudaEventCreate())

    def _done(self, answer: tuple[Any, ...]) -> Any:
        """Return the result of a call of CUDA's.

        Raises:
            RuntimeError: it failed.
        """
        if int(answer[0]) != 0:
            raise RuntimeError(f"CUDA error: {answer[0].name}")
        return answer[1] if len(answer) > 1 else None


def compiled_network(
    module: Path,
    parameters: Sequence[Any],
    image_shape: tuple[int, int, int],
    open_device: Callable[[], Any] | None = None,
    batch: int = 1,
) -> Callable[[Any], Any]:
    """Load a network that was compiled for a GPU: a function from an image float32[C, R, R] to logits float32[classes],
    or from a batch of several float32[B, C, R, R] to theirs [B, classes].

    Weights stay on the device. Every call uses the same arrays there: the network is a CUDA graph, which keeps the
    addresses of its first call.

    Args:
        parameters: arrays of each operator, as `chanas.network.folding.pack_block` gives them.
    """
    import numpy as np

    device = (open_device or CUDADevice)()
    with scratch_folder() as folder:  # the loader gives back what it has under a name, whatever the file is by now
        machine = device.load(shutil.copyfile(module, folder / module.name))
    function, output = machine["main"], machine["new_output"]()
    planes = (batch * image_shape[0], image_shape[1] * image_shape[2])
    images = device.tensor(np.zeros(planes, dtype=np.float32))
    arguments = (images, *(device.tensor(p) for p in parameters), output)

    def run(pixels: Any) -> Any:
        images.copyfrom(np.ascontiguousarray(pixels, dtype=np.float32).reshape(planes))
        function(*arguments)
        logits = output.numpy().astype(np.float32)[:batch]  # what follows are spare rows
        return logits if batch > 1 else logits[0]

    return run
