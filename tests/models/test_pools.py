"""chanas/models/pools.py: windows give what PyTorch does, NaN and infinity too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from networks import untuned_program
from torch import nn

from chanas.bundle.tuned import TunedNetwork

from .torch_networks import Of

POOLS = {
    "3, stride 2": nn.MaxPool2d(3, 2, 1),
    "side by side": nn.MaxPool2d(2),
    "three in a row": nn.Sequential(*(nn.MaxPool2d(5, 1, 2) for _ in range(3))),
    "rectangular": nn.MaxPool2d((2, 5), (3, 2), (1, 2), ceil_mode=True),
    "mean of what is inside": nn.AvgPool2d((3, 4), 2, 1, count_include_pad=False),
}


def test_nan_and_infinity_of_an_image_go_through_its_windows_as_in_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = {"first": nn.Conv2d(16, 16, 1), "pools": nn.ModuleList(POOLS.values())}
    network = Of(lambda n, x: tuple(pool(n.first(x)) for pool in n.pools), **layers).eval()
    x = torch.randn(2, 16, 12, 12)
    folder = untuned_program(network, [x], tmp_path)
    x[0, 3, 7, 2], x[0, 5, 0, 11], x[0, :, 3:9, 5:9] = torch.nan, torch.inf, -torch.inf
    with torch.no_grad():
        outputs = network(x)
    found = TunedNetwork.open(folder).run(x.numpy())
    for name, ours, theirs in zip(POOLS, found, outputs, strict=True):
        expected = theirs.numpy()
        assert np.isnan(expected[0]).any()
        assert np.isfinite(expected[1]).all()
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5, err_msg=name)
