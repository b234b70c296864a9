"""A bundle's compiled network timed beside PyTorch: same weights, image, threads and cores, in turns."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chanas.bundle.codesign import CoDesign
from chanas.bundle.runtimes import CompiledNetwork
from chanas.core.arrays import Float32Array
from chanas.devices.cores import limited_to
from chanas.devices.gpu_use import check_free
from chanas.devices.timing import Clock, TimingSettings, seconds_per_call, time_in_turns
from chanas.errors import ModelError, describe

_NUM_WARM_UP, _MIN_ROUND_S = 3, 0.01
MAX_TEXT = 120
"""Characters of an error of another project in a note."""
MODULE_ALONE = "module alone"
"""The contender that a search's measurement of the bundle is comparable with."""


@dataclass(frozen=True)
class BenchmarkRow:
    """One contender: median seconds, as a multiple of the compiled module's too, and the range that half of its rounds
    lie in; or the reason that it did not run."""

    name: str
    median_s: float | None
    ratio: float | None
    note: str = ""
    spread_s: float | None = None


class _OnGPU:
    """A PyTorch network on the GPU in channels last: from an image to logits, both in the host's memory."""

    def __init__(self, network: Any) -> None:
        import torch

        self._layout, self.network = torch.channels_last, network.cuda().to(memory_format=torch.channels_last)
        self._forward: Callable[[Any], Any] = self.network

    def compile(self) -> _OnGPU:
        """The same through torch.compile with its own search of kernels and with CUDA graphs."""
        import torch

        other = _OnGPU(self.network)
        other._forward = torch.compile(self.network, mode="max-autotune")
        return other

    def __call__(self, x: Any) -> Any:
        return self._forward(x.cuda().contiguous(memory_format=self._layout)).cpu()


def _compile_with_torch(network: Any, x: Any) -> Callable[[], Any]:
    import torch
    import torch._inductor.config as inductor

    with inductor.patch(freezing=True):
        compiled = network.compile() if isinstance(network, _OnGPU) else torch.compile(network)
        compiled(x)
    return functools.partial(compiled, x)


@contextlib.contextmanager
def noted(notes: dict[str, str], name: str) -> Iterator[None]:
    """Whatever the compiler of another project raises is its row's note."""
    try:
        yield
    except ModelError as error:
        notes[name] = str(error)
    except Exception as error:
        notes[name] = f"did not compile: {describe(error, MAX_TEXT)}"


def bench_images(bundle: CoDesign) -> Float32Array:
    """Random images float32[B, 3, R, R] that all contenders get."""
    resolution = bundle.architecture.resolution
    shape = (bundle.target.batch, bundle.space.in_channels, resolution, resolution)
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def benchmark(
    bundle: CoDesign,
    with_compile: bool = True,
    rounds: int = 40,
    shared: bool | None = False,
    others: Mapping[str, Callable[[], Callable[[], Any]]] | None = None,
    clock: Clock = seconds_per_call,
) -> list[BenchmarkRow]:
    """The compiled module beside PyTorch eager and torch.compile: same weights, same images, same threads and cores.
    `others` make further contenders of `bench_images`, by their names.

    On a processor the module is there twice: as Python calls it, which copies an image in and logits out, and alone.
    On a GPU all of them have the images, one or a batch, from the host's memory and the logits back there, PyTorch in
    channels last. `shared`: although another process uses it; None where that was looked at before.

    Raises:
        TargetError: the module is for another device, or another process uses the GPU.
    """
    import torch

    if shared is not None:
        check_free([bundle.target], shared)

    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # that there is no GPU is not news
    images = bench_images(bundle)
    contenders: dict[str, Callable[[], Any]] = {"chanas": bundle.inference(images)}
    if isinstance(bundle._run, CompiledNetwork):
        contenders[MODULE_ALONE] = bundle._run.module
    notes: dict[str, str] = {}
    network, x = bundle.torch_module(), torch.from_numpy(images)
    has_peers = bundle.target.gpu is None or torch.cuda.is_available()
    if not has_peers:
        notes = dict.fromkeys(
            ("PyTorch eager", *(["torch.compile"] if with_compile else [])), "PyTorch has no CUDA here"
        )
    elif bundle.target.gpu is not None:
        network = _OnGPU(network)
    if has_peers:
        contenders["PyTorch eager"] = functools.partial(network, x)
    with limited_to(bundle.target.num_threads), torch.inference_mode():
        if with_compile and has_peers:
            with noted(notes, "torch.compile"):
                contenders["torch.compile"] = _compile_with_torch(network, x)
        for name, make in (others or {}).items():
            with noted(notes, name):
                contenders[name] = make()
        calls = [[(call, ())] for call in contenders.values()]
        summaries = time_in_turns(calls, _NUM_WARM_UP, TimingSettings(rounds, _MIN_ROUND_S), clock)
    timed = dict(zip(contenders, summaries, strict=True))
    own_s = timed["chanas"].seconds
    rows = [BenchmarkRow(name, s.seconds, s.seconds / own_s, spread_s=s.spread_s) for name, s in timed.items()]
    return rows + [BenchmarkRow(name, None, None, note) for name, note in notes.items()]
