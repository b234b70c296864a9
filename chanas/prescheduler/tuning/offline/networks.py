"""Neural cost models of sequences, after TenSet's (Zheng et al., 2021), smaller; the losses that teach them; and their
training: shuffled batches, Adam, and an end when held-out records get no better.

Shapes: B records, L rows of the longest, F numbers of a row, H hidden units.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from chanas.core.arrays import Array, FloatArray, IntArray
from chanas.core.progress import progress_bar
from chanas.prescheduler.tuning.offline.dataset import Dataset
from chanas.prescheduler.tuning.offline.judging import held_out
from chanas.prescheduler.tuning.offline.primitives import WIDTH, Rows

_HIDDEN, _HEADS = 64, 4
_BATCH, _ASKED_AT_ONCE = 128, 4096
_WEIGHT_DECAY, _CLIP = 1e-6, 0.5


class SegmentSumMLP(nn.Module):
    """Two layers for each row, the sum over rows, two residual layers, a score."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder()
        self.residual = nn.ModuleList(nn.Linear(_HIDDEN, _HIDDEN) for _ in range(2))
        self.score = nn.Linear(_HIDDEN, 1)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """[B] from rows [B, L, F] and which of them are there, bool[B, L]."""
        h = (self.encoder(x) * there[..., None]).sum(1)
        for layer in self.residual:
            h = h + torch.relu(layer(h))
        score: Tensor = self.score(h)[:, 0]
        return score


class Attention(nn.Module):
    """Two layers for each row, attention of rows to each other with a residual, a score of each row, their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder()
        self.attention = nn.MultiheadAttention(_HIDDEN, _HEADS, batch_first=True)
        self.residual = nn.Linear(_HIDDEN, _HIDDEN)
        self.score = nn.Linear(_HIDDEN, 1)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """[B] from rows [B, L, F] and which of them are there, bool[B, L]."""
        h = self.encoder(x)
        h = h + self.attention(h, h, h, key_padding_mask=~there, need_weights=False)[0]
        h = h + torch.relu(self.residual(h))
        score: Tensor = (self.score(h)[..., 0] * there).sum(1)
        return score


NETWORKS: dict[str, type[SegmentSumMLP] | type[Attention]] = {"attention": Attention, "mlp": SegmentSumMLP}


def make_network(name: str, seed: int) -> nn.Module:
    """A new network with the weights of this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETWORKS[name]()


def arrays_of(network: nn.Module) -> dict[str, Array]:
    """Weights by name, as copies."""
    return {name: tensor.numpy().copy() for name, tensor in network.state_dict().items()}


def read_network(name: str, arrays: Mapping[str, Array]) -> nn.Module:
    """A network with these weights.

    Raises:
        RuntimeError: they are those of another one.
    """
    network = make_network(name, seed=0)
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


def _encoder() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU())


# ---- training -------------------------------------------------------------------------------------------------------
# Of a new network and of one that goes on: epochs, the learning rate, and the epochs without a better loss on held-out
# records after which it ends (TenSet: a sixth of all).
_TRAINING, _FINE_TUNING = (60, 3e-3, 10), (30, 5e-4, 30)


@dataclass(frozen=True)
class NetworkLearner:
    """The `Learner` of one of `NETWORKS`, which one of `LOSSES` teaches."""

    name: str
    loss: str

    def fit(self, data: Dataset, seed: int, start: Mapping[str, Array] | None, progress: bool) -> dict[str, Array]:
        """Teach a network, or one with the weights of `start` further."""
        network = make_network(self.name, seed) if start is None else read_network(self.name, start)
        with _one_thread():
            _fit(network, data, self.loss, seed, _TRAINING if start is None else _FINE_TUNING, progress)
        return arrays_of(network)

    def load(self, arrays: Mapping[str, Array]) -> Callable[[Rows], FloatArray]:
        """Scores float64[N] of normalised rows; for `rmse` in (0, 1), as labels are."""
        network = read_network(self.name, arrays)
        return lambda rows: _scores(network, rows, self.loss)


def _fit(
    network: nn.Module, data: Dataset, loss: str, seed: int, schedule: tuple[int, float, int], progress: bool
) -> None:
    """Teach a network; it ends with the weights of the epoch that was best on held-out records."""
    num_epochs, learning_rate, patience = schedule
    learning, judging = (data.of(chosen) for chosen in held_out(len(data), seed))
    rng = np.random.default_rng(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate, weight_decay=_WEIGHT_DECAY)
    best, best_state, since = _loss_of(network, judging, loss), copy.deepcopy(network.state_dict()), 0
    with progress_bar(num_epochs, "training", "epoch", progress) as bar:
        for _ in range(num_epochs):
            network.train()
            for chosen in _batches(learning.task, loss, rng):
                optimiser.zero_grad()
                value = _batch_loss(network, learning.of(chosen), loss)
                value.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(network.parameters(), _CLIP)
                optimiser.step()
            bar.update()
            now, since = _loss_of(network, judging, loss), since + 1
            if now < best:
                best, best_state, since = now, copy.deepcopy(network.state_dict()), 0
            elif since >= patience:
                break
    network.load_state_dict(best_state)
    network.eval()


def _scores(network: nn.Module, rows: Rows, loss: str) -> FloatArray:
    parts = []
    with torch.inference_mode(), _one_thread():
        for start in range(0, len(rows), _ASKED_AT_ONCE):
            chosen = np.arange(start, min(start + _ASKED_AT_ONCE, len(rows)), dtype=np.int64)
            score: Tensor = network(*padded(rows.of(chosen)))
            parts.append((torch.sigmoid(score) if loss == "rmse" else score).numpy())
    found: FloatArray = np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)
    return found


def padded(rows: Rows) -> tuple[Tensor, Tensor]:
    """[B, L, F] with zeros where a record has fewer rows than L, and bool[B, L] where there is one."""
    lengths = rows.lengths
    there = np.arange(lengths.max(initial=1))[None, :] < lengths[:, None]
    x = np.zeros((*there.shape, rows.values.shape[1]), dtype=np.float32)
    x[there] = rows.values
    return torch.from_numpy(x), torch.from_numpy(there)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one core: the networks are small, the others build and time, and sums come out the same each time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _batches(task: IntArray, loss: str, rng: np.random.Generator) -> Iterator[IntArray]:
    """Places in random order; for a loss of pairs, records of one task side by side."""
    order = rng.permutation(len(task)).astype(np.int64)
    if loss != "rmse":
        place = rng.permutation(int(task.max()) + 1)
        order = order[np.argsort(place[task[order]], kind="stable")]
    parts = [order[i : i + _BATCH] for i in range(0, len(order), _BATCH)]
    yield from (parts[i] for i in rng.permutation(len(parts)))


def _batch_loss(network: nn.Module, data: Dataset, loss: str) -> Tensor:
    score = network(*padded(data.primitives))
    return LOSSES[loss](score, torch.from_numpy(data.label), torch.from_numpy(data.task))


def _loss_of(network: nn.Module, data: Dataset, loss: str) -> float:
    """The loss without learning from it."""
    network.eval()
    order = np.argsort(data.task, kind="stable").astype(np.int64)
    parts = [order[i : i + 2048] for i in range(0, len(order), 2048)]
    with torch.inference_mode():
        values = [float(_batch_loss(network, data.of(part), loss)) for part in parts]
    return float(np.average(values, weights=[len(part) for part in parts]))
