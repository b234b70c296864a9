"""Networks beyond torchvision's, with random weights, as files of `torch.export`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_DETECTOR = Path(__file__).resolve().parent.parent / "examples" / "detector" / "network.py"
NUM_CLASSES, PIXELS = 80, 416
VOCABULARY, LENGTH, HIDDEN, HEADS, LAYERS = 30522, 128, 128, 2, 2


def bert_tiny() -> tuple[Any, Tensor]:
    """A transformer's encoder of the shape of BERT-tiny (Turc et al., Well-Read Students Learn Better, 2019), and token
    ids int64[1, 128]. It gives the hidden states, float32[1, 128, 128]."""
    import torch
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
            self.positions = nn.Parameter(torch.randn(LENGTH, HIDDEN))
            self.norm = nn.LayerNorm(HIDDEN)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(HIDDEN, HEADS, 4 * HIDDEN, 0.0, "gelu", batch_first=True)
                for _ in range(LAYERS)
            )

        def forward(self, ids: Tensor) -> Tensor:
            states: Tensor = self.norm(self.tokens(ids) + self.positions)
            for layer in self.layers:
                states = layer(states)
            return states

    return Encoder(), torch.zeros(1, LENGTH, dtype=torch.int64)


def detector(pixels: int = PIXELS) -> tuple[Any, Tensor]:
    """The detector of `examples/detector` with as many kinds of objects as COCO has, and an image."""
    import torch

    from chanas.models.sources.torch_models import take_statistics

    spec = importlib.util.spec_from_file_location("detector_network", _DETECTOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    network = module.Detector(NUM_CLASSES)
    image = torch.zeros(1, 3, pixels, pixels)
    take_statistics(network, tuple(image.shape))
    return network, image


Networks = Mapping[str, Callable[[], tuple[Any, "Tensor"]]]
EXPORTED: Networks = {"bert_tiny": bert_tiny, "detector": detector}


def export_network(name: str, folder: Path, networks: Networks = EXPORTED) -> Path:
    """`NAME.pt2` in a folder, written now unless it is there: its weights are the same every time."""
    import torch

    path = folder / f"{name}.pt2"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network, taken = networks[name]()
        torch.export.save(torch.export.export(network.eval(), (taken,)), path)
    return path
