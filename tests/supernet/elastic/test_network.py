"""The supernet runs every architecture of its space, and hands out static copies that agree with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import seeds, spaces_and_architectures

from chanas.core import genome
from chanas.core.arch import Architecture, SearchSpace
from chanas.errors import ArchitectureError
from chanas.network.static import randomise_statistics
from chanas.supernet.elastic.layers import ElasticBatchNorm2d
from chanas.supernet.elastic.network import Supernet


def trained_like(space: SearchSpace, num_classes: int, seed: int) -> Supernet:
    """A supernet in eval mode with weights and statistics of no special value, so that a mix-up shows."""
    torch.manual_seed(seed)
    network = Supernet(space, num_classes).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.05 if "transforms" in name else 0.2))
    for layer in network.modules():
        if isinstance(layer, ElasticBatchNorm2d):
            layer.running_mean.uniform_(-0.2, 0.2)
            layer.running_var.uniform_(0.5, 1.5)
    return network


def assert_agree(actual: torch.Tensor, expected: torch.Tensor) -> None:
    scale = float(expected.abs().max().clamp(min=1e-6))
    torch.testing.assert_close(actual / scale, expected / scale, rtol=0, atol=1e-5)


@given(pair=spaces_and_architectures(), num_classes=st.integers(2, 20), seed=seeds)
@settings(max_examples=8)
def test_a_static_copy_agrees_with_the_active_subnet(
    pair: tuple[SearchSpace, Architecture], num_classes: int, seed: int
) -> None:
    space, architecture = pair
    network = trained_like(space, num_classes, seed)
    x = torch.randn(2, space.in_channels, architecture.resolution, architecture.resolution)
    network.set_active_subnet(architecture)
    with torch.no_grad():
        assert_agree(network.extract(architecture)(x), network(x))


def test_a_static_copy_shares_no_memory_with_the_supernet(tiny_space: SearchSpace) -> None:
    network, x = trained_like(tiny_space, 4, 0), torch.randn(2, 3, 16, 16)
    before = network(x).detach().clone()
    static = network.extract(tiny_space.largest)
    with torch.no_grad():
        for parameter in static.parameters():
            parameter.zero_()
    randomise_statistics(static, 0)
    torch.testing.assert_close(network(x), before, rtol=0, atol=0)


def test_extracting_leaves_the_active_subnet_alone(tiny_space: SearchSpace) -> None:
    network = Supernet(tiny_space, 4)
    network.set_active_subnet(tiny_space.smallest)
    network.extract(tiny_space.largest)
    assert network.get_active_subnet() == tiny_space.smallest


def test_the_largest_is_active_at_first(tiny_space: SearchSpace) -> None:
    assert Supernet(tiny_space, 4).get_active_subnet() == tiny_space.largest


@pytest.mark.parametrize("train", [True, False])
def test_a_static_copy_has_the_supernets_mode(tiny_space: SearchSpace, train: bool) -> None:
    assert Supernet(tiny_space, 4).train(train).extract(tiny_space.smallest).training is train


def test_sorting_leaves_the_largest_network_as_it_was(tiny_space: SearchSpace) -> None:
    network, x = trained_like(tiny_space, 5, 3), torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        before = network(x)
        first = network.state_dict()["stages.1.0.project.conv.weight"].clone()
        network.sort_channels()
        assert_agree(network(x), before)
    assert not torch.equal(network.state_dict()["stages.1.0.project.conv.weight"], first)


def test_sorting_puts_the_channels_of_large_projection_weights_first(tiny_space: SearchSpace) -> None:
    network = trained_like(tiny_space, 5, 4)
    network.sort_channels()
    for name, weight in network.named_parameters():
        if name.startswith("stages") and name.endswith("project.conv.weight"):
            norms = weight.abs().sum((0, 2, 3))
            assert bool((norms.diff() <= 0).all()), name


def test_sorting_twice_changes_nothing_more(tiny_space: SearchSpace) -> None:
    network = trained_like(tiny_space, 5, 5)
    network.sort_channels()
    once = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.sort_channels()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, once[name]), name


def test_every_architecture_of_the_space_gives_logits(tiny_space: SearchSpace) -> None:
    network = Supernet(tiny_space, 7).eval()
    for architecture in genome.decode(tiny_space, genome.sample(tiny_space, 40, np.random.default_rng(0))):
        network.set_active_subnet(architecture)
        assert network(torch.randn(2, 3, architecture.resolution, architecture.resolution)).shape == (2, 7)


def test_gradients_reach_only_what_is_active(tiny_space: SearchSpace) -> None:
    network = Supernet(tiny_space, 4)
    network.set_active_subnet(tiny_space.smallest)
    network(torch.randn(4, 3, 12, 12)).sum().backward()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
    assert gradients["stages.0.1.project.conv.weight"] is None
    weight = gradients["stages.0.0.project.conv.weight"]
    assert weight is not None
    assert bool(weight[:16, :16].abs().sum() > 0)
    assert bool(weight[16:].eq(0).all())


def test_an_architecture_of_another_space_is_refused(tiny_space: SearchSpace) -> None:
    stranger = SearchSpace.load("mbv3-32").largest
    with pytest.raises(ArchitectureError, match="resolution 32"):
        Supernet(tiny_space, 4).set_active_subnet(stranger)


@given(pair=spaces_and_architectures(), seed=seeds)
@settings(max_examples=8)
def test_active_parameters_are_those_that_get_a_gradient(pair: tuple[SearchSpace, Architecture], seed: int) -> None:
    space, architecture = pair
    torch.manual_seed(seed)
    network = Supernet(space, 3)
    network.set_active_subnet(architecture)
    network(torch.randn(2, space.in_channels, architecture.resolution, architecture.resolution)).sum().backward()
    active = {id(p) for p in network.active_parameters()}
    for name, parameter in network.named_parameters():
        assert (parameter.grad is not None) is (id(parameter) in active), name


@given(pair=spaces_and_architectures(), seed=seeds)
@settings(max_examples=8)
def test_a_network_of_only_one_architecture_inherits_and_computes_the_same(
    pair: tuple[SearchSpace, Architecture], seed: int
) -> None:
    space, architecture = pair
    static = trained_like(space, 3, seed).extract(architecture)
    network = Supernet(space, 3, only=architecture)
    network.inherit(static)
    network.eval()
    x = torch.randn(2, space.in_channels, architecture.resolution, architecture.resolution)
    with torch.no_grad():
        assert_agree(network(x), static(x))
        assert_agree(network.extract(architecture)(x), static(x))
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in static.parameters())


def test_a_network_of_only_one_architecture_refuses_others(tiny_space: SearchSpace) -> None:
    network = Supernet(tiny_space, 3, only=tiny_space.smallest)
    for call in (network.set_active_subnet, network.extract):
        with pytest.raises(ArchitectureError, match=r"this network is r12-.* alone, not r16-"):
            call(tiny_space.largest)
