"""Recalibrated BN statistics are those of the images, whatever stood there before."""

from __future__ import annotations

import torch
from torch import nn

from chanas.supernet.elastic.calibrate import num_correct, recalibrate


def test_statistics_become_those_of_the_images() -> None:
    network = nn.Sequential(nn.BatchNorm2d(3))
    network[0].running_mean.fill_(9.0)
    images = torch.randn(50, 3, 8, 8) * 3 + 2
    recalibrate(network, [images])
    torch.testing.assert_close(network[0].running_mean, images.mean((0, 2, 3)))
    torch.testing.assert_close(network[0].running_var, images.var((0, 2, 3)))


def test_batches_count_the_same() -> None:
    network = nn.Sequential(nn.BatchNorm2d(1))
    recalibrate(network, [torch.full((2, 1, 2, 2), value) for value in (0.0, 3.0, 6.0)])
    torch.testing.assert_close(network[0].running_mean, torch.tensor([3.0]))


def test_the_network_is_left_in_eval_mode_with_its_momentum_and_weights() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, momentum=0.3)).train()
    weight = network[0].weight.detach().clone()
    recalibrate(network, [torch.randn(4, 3, 4, 4)])
    assert not network.training
    assert network[1].momentum == 0.3
    assert torch.equal(network[0].weight, weight)


def test_correct_answers_are_counted() -> None:
    images = torch.tensor([[3.0, 1.0], [0.0, 2.0], [5.0, 4.0]])
    assert num_correct(nn.Identity(), images, torch.tensor([0, 1, 1])) == 2
