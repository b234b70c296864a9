"""Eq. 3, term by term."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from chanas.supernet.training.objective import LossTerms, objective
from chanas.supernet.training.phases import GAP_WEIGHT, ObjectiveConfig

LABELS, GAP_LABELS = torch.tensor([0, 1, 2, 0]), torch.tensor([2, 1])


def logits(seed: int, rows: int) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def terms(config: ObjectiveConfig, teacher: Tensor | None = None) -> tuple[LossTerms, Tensor, Tensor]:
    train, gap = logits(0, 4), logits(1, 2)
    return objective(train, LABELS, gap, GAP_LABELS, teacher, config), train, gap


def test_lambda_is_the_papers() -> None:
    assert ObjectiveConfig().gap_weight == GAP_WEIGHT == 0.45


def test_the_total_is_the_weighted_sum_of_its_terms() -> None:
    config = ObjectiveConfig(gap_weight=0.3, distillation_weight=0.7, label_smoothing=0.0)
    found, train, gap = terms(config, teacher=logits(2, 4))
    train_loss, gap_loss = F.cross_entropy(train, LABELS), F.cross_entropy(gap, GAP_LABELS)
    soft = F.cross_entropy(train, logits(2, 4).softmax(1))
    torch.testing.assert_close(found.total, train_loss + 0.3 * (gap_loss - train_loss).abs() + 0.7 * soft)
    assert found.to_floats(found.stacked().tolist()) == pytest.approx(
        {
            "loss": found.total.item(),
            "train_loss": train_loss.item(),
            "gap_loss": gap_loss.item(),
            "generalization_gap": (gap_loss - train_loss).item(),
            "distillation": soft.item(),
        }
    )


def test_gradients_flow_through_both_losses() -> None:
    found, train, gap = terms(ObjectiveConfig(label_smoothing=0.0))
    found.total.backward()
    assert found.gap is not None
    sign = 1.0 if found.gap > found.train else -1.0
    own_train, own_gap = logits(0, 4), logits(1, 2)
    F.cross_entropy(own_train, LABELS).backward()
    F.cross_entropy(own_gap, GAP_LABELS).backward()
    torch.testing.assert_close(train.grad, own_train.grad * (1 - 0.45 * sign))
    torch.testing.assert_close(gap.grad, own_gap.grad * 0.45 * sign)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_hinge_leaves_gap_images_alone_where_they_are_the_easier_ones(swapped: bool) -> None:
    config = ObjectiveConfig(gap_form="hinge", label_smoothing=0.0)
    train, gap = logits(0, 4), logits(1, 2)
    if swapped:
        train, gap = torch.cat([gap, gap]).detach().requires_grad_(), train[:2].detach().requires_grad_()
    labels = (GAP_LABELS.repeat(2), LABELS[:2]) if swapped else (LABELS, GAP_LABELS)
    found = objective(train, labels[0], gap, labels[1], None, config)
    found.total.backward()
    assert found.gap is not None
    larger = bool(found.gap > found.train)
    assert bool(gap.grad.abs().sum() > 0) is larger
    torch.testing.assert_close(found.total, found.train + 0.45 * (found.gap - found.train).clamp(min=0))


def test_the_whole_batch_decides_which_way_the_gap_points() -> None:
    """A process whose own part says otherwise follows the mean."""
    config = ObjectiveConfig(label_smoothing=0.0)
    own, _, _ = terms(config)
    assert own.gap is not None
    train, gap = logits(0, 4), logits(1, 2)
    turned = objective(train, LABELS, gap, GAP_LABELS, None, config, mean=torch.neg)
    torch.testing.assert_close(turned.total - own.train, -(own.total - own.train))


def test_lambda_zero_is_the_train_loss_itself() -> None:
    found, train, gap = terms(ObjectiveConfig(gap_weight=0.0, label_smoothing=0.1))
    assert torch.equal(found.total, F.cross_entropy(train, LABELS, label_smoothing=0.1))
    assert found.gap is None
    found.total.backward()
    assert gap.grad is None


def test_the_teacher_gets_no_gradient() -> None:
    teacher = logits(2, 4)
    found, _, _ = terms(ObjectiveConfig(), teacher)
    found.total.backward()
    assert teacher.grad is None


def test_without_a_teacher_there_is_no_distillation() -> None:
    found, _, _ = terms(ObjectiveConfig(distillation_weight=1.0))
    assert found.distillation is None
    assert found.to_floats(found.stacked().tolist())["distillation"] is None
