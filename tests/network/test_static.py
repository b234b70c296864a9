"""chanas/network/static.py against chanas/core/arch.py: the PyTorch network is what the block configurations say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from chanas.core.arch import Architecture, SearchSpace, SubSpace
from chanas.core.blocks import BlockConfig
from chanas.network.static import (
    Classifier,
    StaticNetwork,
    block_module,
    for_inference,
    random_static_network,
    randomise_statistics,
)

MBV3 = SearchSpace.load("mbv3")
PLAIN = MBV3.block(SubSpace(224, 1.0), stage=0, position=0, kernel_size=5, expand_ratio=4)
WITH_SE = MBV3.block(SubSpace(224, 1.1), stage=1, position=1, kernel_size=7, expand_ratio=6)
FIXED = dict(zip(("stem", "first", "head", "classifier"), MBV3.fixed_blocks(SubSpace(160, 1.2), 1000), strict=True))
BLOCKS = {**FIXED, "mbconv": PLAIN, "mbconv-se-res": WITH_SE}

every_block = pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())


def num_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def counted_macs(module: nn.Module, *inputs: torch.Tensor) -> int:
    """Multiply-accumulates of the convolutions and dense layers of one forward pass, counted from the tensors seen."""
    total = 0

    def count(layer: nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Conv2d | nn.Linear):
            per_output = layer.weight[0].numel()
            total += out.numel() * per_output

    hooks = [m.register_forward_hook(count) for m in module.modules()]
    with torch.no_grad():
        module.eval()(*inputs)
    for hook in hooks:
        hook.remove()
    return total


def input_of(block: BlockConfig) -> torch.Tensor:
    shape = (1, block.in_channels) if block.kind == "classifier" else (1, block.in_channels, *[block.input_size] * 2)
    return torch.rand(shape)


@every_block
def test_a_block_has_the_parameters_that_its_configuration_counts(block: BlockConfig) -> None:
    assert num_parameters(block_module(block)) == block.num_params


@every_block
def test_a_block_has_the_macs_that_its_configuration_counts(block: BlockConfig) -> None:
    assert counted_macs(block_module(block), input_of(block)) == block.num_macs


@every_block
def test_a_block_has_the_output_that_its_configuration_says(block: BlockConfig) -> None:
    out = block_module(block).eval()(input_of(block))
    maps = block.kind in {"stem", "mbconv"}
    assert out.shape == (1, block.out_channels, *[block.output_size] * 2 * maps)


@pytest.mark.parametrize("input_size", [7, 8, 13])
@pytest.mark.parametrize("kernel_size", [1, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_odd_sizes_round_up(input_size: int, kernel_size: int, stride: int) -> None:
    block = BlockConfig("mbconv", input_size, 8, 16, 8, kernel_size, stride)
    assert block_module(block).eval()(input_of(block)).shape[-1] == block.output_size


def test_the_first_block_has_no_expansion() -> None:
    assert block_module(FIXED["first"]).expand is None
    assert not FIXED["first"].has_expand


def test_a_residual_adds_the_input() -> None:
    torch.manual_seed(0)
    with_residual, without = block_module(WITH_SE).eval(), block_module(replace(WITH_SE, residual=False)).eval()
    without.load_state_dict(with_residual.state_dict())
    x = input_of(WITH_SE)
    torch.testing.assert_close(with_residual(x), without(x) + x)


def test_the_gate_of_squeeze_excite_scales_each_channel() -> None:
    module = block_module(WITH_SE)
    assert module.se is not None
    with torch.no_grad():
        module.se.expand.weight.zero_()
        module.se.expand.bias.fill_(-3.0)  # h-sigmoid(-3) = 0
        module.se.expand.bias[0] = 3.0  # h-sigmoid(3) = 1
    x = torch.rand(2, WITH_SE.mid_channels, 5, 5)
    out = module.se(x)
    torch.testing.assert_close(out[:, 0], x[:, 0])
    assert out[:, 1:].abs().max() == 0


def test_the_classifier_has_a_bias_only_at_its_end() -> None:
    module = block_module(FIXED["classifier"])
    assert isinstance(module, Classifier)
    assert module.feature.bias is None
    assert module.linear.bias is not None


@pytest.mark.parametrize("name", ["mbv3", "mbv3-32"])
@pytest.mark.parametrize("corner", ["smallest", "largest"])
def test_whole_networks_have_the_macs_parameters_and_classes_that_were_counted(name: str, corner: str) -> None:
    space = SearchSpace.load(name)
    architecture: Architecture = getattr(space, corner)
    network = StaticNetwork(architecture.blocks(space, num_classes=10)).eval()
    image = torch.rand(1, 3, architecture.resolution, architecture.resolution)
    with torch.no_grad():
        assert network(image).shape == (1, 10)
    assert num_parameters(network) == architecture.num_params(space, 10)
    assert counted_macs(network, image) == architecture.num_macs(space, 10)


def test_parameter_names_are_those_of_the_bundle_format(tiny_space: SearchSpace) -> None:
    names = set(StaticNetwork(tiny_space.smallest.blocks(tiny_space, 10)).state_dict())
    bn = {f"bn.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}
    conv = {"conv.weight", *bn}
    expected = {
        *(f"blocks.{i}.conv.{n}" for i in (0, 4) for n in conv),  # stem and head
        *(f"blocks.{i}.{part}.{n}" for i in (1, 2, 3) for part in ("depthwise", "project") for n in conv),
        *(f"blocks.{i}.expand.{n}" for i in (2, 3) for n in conv),
        *(f"blocks.3.se.{part}.{n}" for part in ("reduce", "expand") for n in ("weight", "bias")),
        *(f"blocks.5.{n}" for n in ("feature.weight", "linear.weight", "linear.bias")),
    }
    assert names == expected


def test_randomised_statistics_are_those_of_the_seed() -> None:
    states = []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        module = block_module(WITH_SE)
        randomise_statistics(module, seed)
        states.append(module.state_dict()["expand.bn.running_var"])
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)
    assert not torch.equal(states[0], states[2])
    assert 0.5 <= states[0].min() <= states[0].max() <= 1.5


def test_a_network_for_inference_computes_the_same_without_batch_normalisation(tiny_space: SearchSpace) -> None:
    network = random_static_network(tiny_space.largest.blocks(tiny_space, 10), seed=0)
    images = torch.rand(3, tiny_space.in_channels, *[tiny_space.largest.resolution] * 2)
    with torch.inference_mode():
        expected, kept = network(images), images.clone()
        found = for_inference(network)(images)
    torch.testing.assert_close(found, expected)
    assert torch.equal(images, kept)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
