"""Blocks as PyTorch runs them, in the process that asks: kernels of a library, the same whatever the block around them.

Only `chanas.compiler.cases` and this module of the prescheduler know torch.
"""

from __future__ import annotations

import gc
import statistics
import time

import numpy as np
import torch

from chanas.compiler.cases import case_seed
from chanas.core.blocks import BlockConfig
from chanas.measuring.locks import device_lock
from chanas.measuring.messages import Outcome
from chanas.network.static import block_module, randomise_statistics

_CALLS = 25
_WARM_UP = 3


def time_block(block: BlockConfig, cold_bytes: int) -> Outcome:
    """Seconds of a block with random weights in PyTorch's eager mode, in the faster of its two memory layouts.

    Before each call `cold_bytes` of other memory are read, so that weights and code come from as far away as in a
    network. The median of the calls counts. The device is locked meanwhile; who calls sees to cores and threads
    (`chanas.devices.cores.limited_to`).
    """
    seed = case_seed(block.key)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        module = block_module(block).eval()
        randomise_statistics(module, seed)
        x = torch.randn(1, block.in_channels, block.input_size, block.input_size)
        flat = block.kind == "classifier"
        layouts = (torch.contiguous_format,) if flat else (torch.contiguous_format, torch.channels_last)
        others = np.ones(max(cold_bytes // 4, 1), dtype=np.float32)
        found = []
        for layout in layouts:
            laid_out = module.to(memory_format=layout)
            given = x.flatten(1) if flat else x.to(memory_format=layout)
            with device_lock():
                found.append(_seconds(laid_out, given, others))
    return min(found, key=lambda outcome: outcome.seconds or 0.0)


def _seconds(module: torch.nn.Module, x: torch.Tensor, others: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Outcome:
    samples = []
    gc.disable()
    try:
        for _ in range(_WARM_UP):
            module(x)
        for _ in range(_CALLS):
            others.sum()
            start = time.perf_counter()
            module(x)
            samples.append(time.perf_counter() - start)
    finally:
        gc.enable()
    low, median, high = statistics.quantiles(samples, n=4)
    return Outcome(median, high - low, None)
