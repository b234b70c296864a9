"""Neural cost models of sequences, after TenSet's (Zheng et al., 2021), smaller; and the losses that teach them.

Shapes: B records, L rows of the longest, F numbers of a row, H hidden units.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

HIDDEN, HEADS = 64, 4


class SegmentSumMLP(nn.Module):
    """Two layers for each row, the sum over rows, two residual layers, a score."""

    def __init__(self, num_features: int, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.encoder = _encoder(num_features, hidden)
        self.residual = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(2))
        self.score = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """[B] from rows [B, L, F] and which of them are there, bool[B, L]."""
        h = (self.encoder(x) * there[..., None]).sum(1)
        for layer in self.residual:
            h = h + torch.relu(layer(h))
        score: Tensor = self.score(h)[:, 0]
        return score


class Attention(nn.Module):
    """Two layers for each row, attention of rows to each other with a residual, a score of each row, their sum."""

    def __init__(self, num_features: int, hidden: int = HIDDEN, heads: int = HEADS) -> None:
        super().__init__()
        self.encoder = _encoder(num_features, hidden)
        self.attention = nn.MultiheadAttention(hidden, heads, batch_first=True)
        self.residual = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """[B] from rows [B, L, F] and which of them are there, bool[B, L]."""
        h = self.encoder(x)
        h = h + self.attention(h, h, h, key_padding_mask=~there, need_weights=False)[0]
        h = h + torch.relu(self.residual(h))
        score: Tensor = (self.score(h)[..., 0] * there).sum(1)
        return score


NETWORKS: dict[str, type[SegmentSumMLP] | type[Attention]] = {"attention": Attention, "mlp": SegmentSumMLP}


def make_network(name: str, num_features: int, seed: int) -> nn.Module:
    """A new network with the weights of this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name](num_features)


def arrays_of(network: nn.Module) -> dict[str, npt.NDArray[np.float32]]:
    """Weights by name, as copies."""
    return {name: tensor.numpy().copy() for name, tensor in network.state_dict().items()}


def read_network(name: str, num_features: int, arrays: Mapping[str, npt.NDArray[np.float32]]) -> nn.Module:
    """A network with these weights.

    Raises:
        RuntimeError: they are those of another one.
    """
    network = make_network(name, num_features, seed=0)
    network.load_state_dict({key: torch.from_numpy(array.copy()) for key, array in arrays.items()})
    return network.eval()


def square_loss(score: Tensor, label: Tensor, task: Tensor) -> Tensor:
    """Mean square of sigmoid(score) − label; [B] each."""
    return ((torch.sigmoid(score) - label) ** 2).mean()


def lambda_rank(score: Tensor, label: Tensor, task: Tensor) -> Tensor:
    """LambdaRank (Burges, 2010) inside each task: the logistic loss of pairs, weighted by the change of NDCG if the two
    changed places. [B] each; gains are 2^label − 1, ranks those of the scores."""
    same = task[:, None] == task[None, :]
    ahead = same & (score[None, :] > score[:, None])
    discount = 1.0 / torch.log2(2.0 + ahead.sum(1))
    gain = 2.0**label - 1.0
    place = 1.0 / torch.log2(2.0 + (same & (label[None, :] > label[:, None])).sum(1))
    ideal = (same * (gain * place)[None, :]).sum(1).clamp_min(1e-9)
    change = (gain[:, None] - gain[None, :]).abs() * (discount[:, None] - discount[None, :]).abs() / ideal[:, None]
    wanted = same & (label[:, None] > label[None, :])
    pairs = nn.functional.softplus(score[None, :] - score[:, None]) * change.detach() * wanted
    return pairs.sum() / wanted.sum().clamp_min(1)


LOSSES = {"rmse": square_loss, "lambdarank": lambda_rank}


def _encoder(num_features: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(num_features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
