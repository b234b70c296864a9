"""The training objective of one sub-network in one step: equation 3 of the paper plus distillation (equation 2
without its second term).

    loss = L_train + λ · |L_val − L_train| + κ · KD

L_train and L_val are cross-entropies with label smoothing on images of the `train` and the `gap` split, taken at the
same sub-network in the same step; gradients flow through both. KD is the cross-entropy to the largest network's soft
labels on the train images (Hinton et al., 2015, at temperature 1; once-for-all, section 3.3). λ is `gap_weight`, κ is
`distillation_weight`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from chanas.supernet.training.phases import ObjectiveConfig


@dataclass(frozen=True)
class LossTerms:
    """The scalar terms of one sub-network; what was not computed is None."""

    total: Tensor
    train: Tensor
    gap: Tensor | None
    distillation: Tensor | None

    def stacked(self) -> Tensor:
        """float32[4]: total, train, gap, distillation, with 0 for what was not computed; detached."""
        zero = self.train.new_zeros(())
        parts = (self.total, self.train, self.gap, self.distillation)
        return torch.stack([zero if part is None else part.detach() for part in parts]).float()

    def to_floats(self, stacked: Sequence[float]) -> dict[str, float | None]:
        """Convert the numbers of `stacked` for the log. `generalization_gap` is signed: L_val − L_train."""
        total, train, gap, distillation = stacked
        return {
            "loss": total,
            "train_loss": train,
            "gap_loss": None if self.gap is None else gap,
            "generalization_gap": None if self.gap is None else gap - train,
            "distillation": None if self.distillation is None else distillation,
        }


def soft_cross_entropy(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Mean over N of −Σ softmax(teacher)·log softmax(student); both float[N, classes], no gradient to the teacher."""
    return -(teacher_logits.detach().softmax(1) * logits.log_softmax(1)).sum(1).mean()


def objective(
    train_logits: Tensor,
    train_labels: Tensor,
    gap_logits: Tensor | None,
    gap_labels: Tensor | None,
    teacher_logits: Tensor | None,
    config: ObjectiveConfig,
    mean: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> LossTerms:
    """The terms above for one sub-network.

    Where several processes share a batch, each computes its own part's losses, but which way |L_val − L_train| points
    is decided by the whole batch: then the mean of the processes' gradients is the gradient of the whole batch's loss.

    Args:
        train_logits: float[N, classes]; train_labels: int64[N].
        gap_logits: float[M, classes] of the same sub-network, or None to leave the gap term out; gap_labels: int64[M].
        teacher_logits: float[N, classes] of the largest network on the train images, or None for no distillation.
        config: the weights.
        mean: the mean of a tensor over all processes.
    """
    train = F.cross_entropy(train_logits, train_labels, label_smoothing=config.label_smoothing)
    total, gap, distillation = train, None, None
    if gap_logits is not None and gap_labels is not None and config.gap_weight > 0:
        gap = F.cross_entropy(gap_logits, gap_labels, label_smoothing=config.label_smoothing)
        difference = gap - train
        direction = mean(difference.detach()).sign()
        if config.gap_form == "hinge":
            direction = direction.clamp(min=0.0)
        total = total + config.gap_weight * direction * difference
    if teacher_logits is not None and config.distillation_weight > 0:
        distillation = soft_cross_entropy(train_logits, teacher_logits)
        total = total + config.distillation_weight * distillation
    return LossTerms(total, train, gap, distillation)
