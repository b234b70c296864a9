"""Networks of PyTorch written as a function of layers, and the graphs and programs that are made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from chanas.compiler.program import Program
from chanas.core.target import HardwareTarget
from chanas.devices.host import load_target
from chanas.models.folding import simplify
from chanas.models.graph import Graph
from chanas.models.lowering import lower
from chanas.models.reading.reader import read_graph
from chanas.models.sources.model import OpenedModel
from chanas.models.sources.torch_models import opened_program

HOST = load_target("cpu")
Shape = tuple[int, ...]


class Of(nn.Module):
    """Layers by name and a function of them and the inputs."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def opened(network: nn.Module, *shapes: Shape) -> OpenedModel:
    """A network as it is opened, exported for inputs of these shapes."""
    torch.manual_seed(0)
    return opened_program("net", torch.export.export(network.eval(), tuple(map(torch.zeros, shapes))), {})


def graphs(model: OpenedModel) -> tuple[Graph, Graph]:
    """The graph of a network as it is read, and simplified."""
    read = read_graph(model.proto, model.inputs)
    return read, simplify(read)


def lowered(network: nn.Module, *shapes: Shape, target: HardwareTarget = HOST) -> Program:
    """The program of a network."""
    return lower(graphs(opened(network, *shapes))[1], target)
