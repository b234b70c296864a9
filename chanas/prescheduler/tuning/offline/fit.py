"""Training of neural cost models: shuffled batches, Adam, and an end when held-out records get no better."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from chanas.core.progress import progress_bar
from chanas.prescheduler.tuning.offline.dataset import Examples, FloatArray
from chanas.prescheduler.tuning.offline.networks import LOSSES
from chanas.prescheduler.tuning.offline.primitives import Int64Array, Rows
from chanas.prescheduler.tuning.offline.split import held_out

_BATCH, _ASKED_AT_ONCE = 128, 4096
_WEIGHT_DECAY, _CLIP = 1e-6, 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Effort of a training."""

    num_epochs: int = 60
    learning_rate: float = 3e-3
    patience: int = 10
    """Epochs without a better loss on held-out records (TenSet: a sixth of all)."""


FINE_TUNING = Schedule(num_epochs=30, learning_rate=5e-4, patience=30)


def fit_network(
    network: nn.Module,
    examples: Examples,
    loss: str,
    seed: int,
    schedule: Schedule | None = None,
    progress: bool = True,
) -> None:
    """Teach a network; it ends with the weights of the epoch that was best on held-out records.

    Args:
        examples: with normalised rows.
        loss: one of `networks.LOSSES`.
        seed: of the records that are held out, and of their order.
    """
    with _one_thread():
        _fit(network, examples, loss, seed, schedule or Schedule(), progress)


def _fit(network: nn.Module, examples: Examples, loss: str, seed: int, schedule: Schedule, progress: bool) -> None:
    learning, judging = (examples.of(chosen) for chosen in held_out(len(examples.label), seed))
    rng = np.random.default_rng(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=schedule.learning_rate, weight_decay=_WEIGHT_DECAY)
    best, best_state, since = _loss_of(network, judging, loss), copy.deepcopy(network.state_dict()), 0
    with progress_bar(schedule.num_epochs, "training", "epoch", progress) as bar:
        for _ in range(schedule.num_epochs):
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
            elif since >= schedule.patience:
                break
    network.load_state_dict(best_state)
    network.eval()


def scores(network: nn.Module, rows: Rows, loss: str) -> FloatArray:
    """float64[N]: what a network says of records, higher is faster; for `rmse` in (0, 1), as labels are."""
    network.eval()
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


def _batches(task: Int64Array, loss: str, rng: np.random.Generator) -> Iterator[Int64Array]:
    """Places in random order; for a loss of pairs, records of one task side by side."""
    order = rng.permutation(len(task)).astype(np.int64)
    if loss != "rmse":
        place = rng.permutation(int(task.max()) + 1)
        order = order[np.argsort(place[task[order]], kind="stable")]
    parts = [order[i : i + _BATCH] for i in range(0, len(order), _BATCH)]
    yield from (parts[i] for i in rng.permutation(len(parts)))


def _batch_loss(network: nn.Module, examples: Examples, loss: str) -> Tensor:
    score = network(*padded(examples.rows))
    return LOSSES[loss](score, torch.from_numpy(examples.label), torch.from_numpy(examples.task))


def _loss_of(network: nn.Module, examples: Examples, loss: str) -> float:
    """The loss without learning from it."""
    network.eval()
    order = np.argsort(examples.task, kind="stable").astype(np.int64)
    parts = [order[i : i + 2048] for i in range(0, len(order), 2048)]
    with torch.inference_mode():
        values = [float(_batch_loss(network, examples.of(part), loss)) for part in parts]
    return float(np.average(values, weights=[len(part) for part in parts]))
