"""BN recalibration: the supernet's shared running statistics fit no sub-network exactly, so each one that is evaluated
or deployed gets its own from training images (Yu & Huang, 2019; once-for-all uses 2,000 images)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


@torch.no_grad()
def recalibrate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics of every BatchNorm2d by those of `batches`, and leave the network in eval mode.

    Args:
        network: a static network; its weights are not touched.
        batches: float[N, 3, R, R] each, N >= 2; means and variances are averaged over batches with equal weight.
    """
    layers = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative average instead of an exponential one
    network.train()
    for images_nchw in batches:
        network(images_nchw)
    network.eval()
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


@torch.inference_mode()
def num_correct(network: Callable[[Tensor], Tensor], images_nchw: Tensor, labels: Tensor) -> int:
    """Count the images float[N, 3, R, R] whose largest logit is that of their class in int64[N]."""
    return int((network(images_nchw).argmax(1) == labels).sum())
