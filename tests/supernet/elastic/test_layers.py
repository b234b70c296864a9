"""Elastic layers do what static layers of the same size do, on the leading part of their weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from chanas.errors import ConfigError
from chanas.supernet.elastic.layers import (
    ElasticBatchNorm2d,
    ElasticConv2d,
    ElasticDepthwiseConv2d,
    ElasticLinear,
    ElasticSqueezeExcite,
)


@pytest.mark.parametrize("kernel_size", [3, 5, 7])
def test_a_smaller_kernel_is_the_centre_of_the_largest_at_the_start(kernel_size: int) -> None:
    layer = ElasticDepthwiseConv2d(8, [3, 5, 7])
    edge = (7 - kernel_size) // 2
    centre = layer.weight[:6, :, edge : edge + kernel_size, edge : edge + kernel_size]
    torch.testing.assert_close(layer.active_weight(6, kernel_size), centre)


def test_the_kernel_transforms_are_chained_matrices_shared_by_the_channels() -> None:
    layer = ElasticDepthwiseConv2d(4, [3, 5, 7])
    assert {name: tuple(p.shape) for name, p in layer.transforms.items()} == {"7to5": (25, 25), "5to3": (9, 9)}
    nn.init.normal_(layer.transforms["7to5"])
    nn.init.normal_(layer.transforms["5to3"])
    five = torch.einsum("ij,cj->ci", layer.transforms["7to5"], layer.weight[:, 0, 1:6, 1:6].reshape(4, 25))
    three = torch.einsum("ij,cj->ci", layer.transforms["5to3"], five.view(4, 5, 5)[:, 1:4, 1:4].reshape(4, 9))
    torch.testing.assert_close(layer.active_weight(4, 3), three.view(4, 1, 3, 3))


def test_only_the_transforms_that_a_kernel_passes_get_gradients() -> None:
    layer = ElasticDepthwiseConv2d(4, [3, 5, 7])
    layer(torch.randn(2, 4, 8, 8), 5).sum().backward()
    assert layer.transforms["7to5"].grad is not None
    assert layer.transforms["5to3"].grad is None


@given(sizes=st.lists(st.sampled_from([1, 3, 5, 7, 9, 11]), min_size=1, unique=True).map(sorted), data=st.data())
def test_a_depthwise_layer_keeps_the_size_for_any_ascending_odd_kernels(sizes: list[int], data: st.DataObject) -> None:
    layer = ElasticDepthwiseConv2d(3, sizes)
    assert layer(torch.randn(1, 3, 9, 9), data.draw(st.sampled_from(sizes))).shape == (1, 3, 9, 9)


@pytest.mark.parametrize("sizes", [[], [5, 3], [3, 4], [3, 3]])
def test_kernel_sizes_must_ascend_and_be_odd(sizes: list[int]) -> None:
    with pytest.raises(ConfigError, match="ascending odd"):
        ElasticDepthwiseConv2d(4, sizes)


def test_a_pointwise_layer_uses_its_leading_channels() -> None:
    layer, x = ElasticConv2d(8, 12), torch.randn(2, 5, 4, 4)
    torch.testing.assert_close(layer(x, 7), F.conv2d(x, layer.weight[:7, :5]))


def test_batch_norm_updates_the_leading_statistics_only() -> None:
    layer = ElasticBatchNorm2d(6).train()
    x = torch.randn(16, 4, 3, 3) * 2 + 1
    static = nn.BatchNorm2d(4)
    torch.testing.assert_close(layer(x), static(x))
    torch.testing.assert_close(layer.running_mean[:4], static.running_mean)
    torch.testing.assert_close(layer.running_var[:4], static.running_var)
    assert layer.running_mean[4:].eq(0).all()
    assert layer.running_var[4:].eq(1).all()


def test_squeeze_excite_equals_a_narrow_layer_with_the_leading_weights() -> None:
    layer, x = ElasticSqueezeExcite(16, 8), torch.randn(2, 12, 5, 5)
    w = layer.active(12, 4)
    assert w["reduce.weight"].shape == (4, 12, 1, 1)
    assert w["expand.weight"].shape == (12, 4, 1, 1)
    squeezed = F.relu(torch.einsum("nc,rc->nr", x.mean((2, 3)), w["reduce.weight"][:, :, 0, 0]) + w["reduce.bias"])
    gate = F.hardsigmoid(torch.einsum("nr,cr->nc", squeezed, w["expand.weight"][:, :, 0, 0]) + w["expand.bias"])
    torch.testing.assert_close(layer(x, 4), x * gate[:, :, None, None])


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_uses_its_leading_features(bias: bool) -> None:
    layer, x = ElasticLinear(8, 6, bias), torch.randn(3, 5)
    expected = x @ layer.weight[:4, :5].T + (layer.bias[:4] if layer.bias is not None else 0)
    torch.testing.assert_close(layer(x, 4), expected)
