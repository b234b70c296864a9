"""A detector of YOLOv4-tiny's shape (Wang et al., Scaled-YOLOv4, 2021): a CSPDarknet53-tiny backbone, a neck that
brings the coarse map to the finer one, and two heads.

An image float32[N, 3, S, S] in [0, 1] with S a multiple of 32 gives two raw maps, float32[N, 3·(5 + C), S/32, S/32] and
the same with S/16; `boxes.py` says what their channels mean.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

NUM_ANCHORS = 3
PRIOR = 0.01
"""Probability of an object that an untrained head gives: few cells have one (RetinaNet, section 4.1)."""


class ConvBlock(nn.Sequential):
    """A convolution that keeps the size (or halves it, with stride 2), batch normalisation, leaky ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.LeakyReLU(0.1, inplace=True),
        )


class CSPBlock(nn.Module):
    """A cross-stage partial block: half of the channels go through two convolutions, and all meet again.

    [N, C, H, W] -> [N, 2·C, H, W], and what the neck reads, [N, C, H, W].
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.half_channels = half = channels // 2
        self.entry = ConvBlock(channels, channels, 3)
        self.first = ConvBlock(half, half, 3)
        self.second = ConvBlock(half, half, 3)
        self.merge = ConvBlock(channels, channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        entry = self.entry(x)
        first = self.first(entry.split(self.half_channels, dim=1)[1])
        merged = self.merge(torch.cat([self.second(first), first], dim=1))
        return torch.cat([entry, merged], dim=1), merged


def map_of(in_channels: int, num_classes: int) -> nn.Conv2d:
    """The convolution at the end of a head, which expects few objects."""
    convolution = nn.Conv2d(in_channels, NUM_ANCHORS * (5 + num_classes), 1)
    bias = torch.zeros(NUM_ANCHORS, 5 + num_classes)
    bias[:, 4] = math.log(PRIOR / (1.0 - PRIOR))
    convolution.bias = nn.Parameter(bias.flatten())
    return convolution


class Detector(nn.Module):
    """Two maps from an image, the coarse one first.

    Args:
        num_classes: kinds of objects.
        width: factor of all numbers of channels but those of the maps; 1 is YOLOv4-tiny.
    """

    def __init__(self, num_classes: int, width: float = 1.0) -> None:
        super().__init__()

        def scaled(channels: int) -> int:
            return max(8, 8 * round(channels * width / 8))

        w32, w64, w128, w256, w512 = (scaled(c) for c in (32, 64, 128, 256, 512))
        self.stem = nn.Sequential(ConvBlock(3, w32, 3, stride=2), ConvBlock(w32, w64, 3, stride=2))
        self.stages = nn.ModuleList(CSPBlock(c) for c in (w64, 2 * w64, 4 * w64))
        self.pool = nn.MaxPool2d(2, 2)
        self.top = ConvBlock(8 * w64, w512, 3)
        self.neck = ConvBlock(w512, w256, 1)
        self.coarse = nn.Sequential(ConvBlock(w256, w512, 3), map_of(w512, num_classes))
        self.lateral = ConvBlock(w256, w128, 1)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.fine = nn.Sequential(ConvBlock(w128 + 4 * w64, w256, 3), map_of(w256, num_classes))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(image)
        route = x
        for stage in self.stages:
            x, route = stage(x)
            x = self.pool(x)
        neck = self.neck(self.top(x))
        raised = self.upsample(self.lateral(neck))
        return self.coarse(neck), self.fine(torch.cat([raised, route], dim=1))
