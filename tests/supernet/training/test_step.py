"""One step: the gradients of all its sub-networks, of both losses, and the update they make."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from chanas.core.arch import SearchSpace
from chanas.supernet.data.loader import Batch
from chanas.supernet.elastic.distributed import World
from chanas.supernet.elastic.network import Supernet
from chanas.supernet.training.phases import ObjectiveConfig, OptimizerConfig, StepPlan
from chanas.supernet.training.step import (
    Execution,
    NonFiniteError,
    accumulate_gradients,
    apply_gradients,
    make_optimizer,
    mean_terms,
)

PLAIN = ObjectiveConfig(gap_weight=0.0, distillation_weight=0.0, label_smoothing=0.0)


def network_of(space: SearchSpace) -> Supernet:
    torch.manual_seed(0)
    return Supernet(space, 4)


def batch_of(num_train: int, num_gap: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num_train + num_gap, 3, 16, 16, generator=generator)
    return Batch(images, torch.randint(4, (num_train + num_gap,), generator=generator), num_train)


def plan_of(space: SearchSpace) -> StepPlan:
    small = dataclasses.replace(space.smallest, resolution=16)
    return StepPlan(0, 0, "all", True, False, 0.1, 16, (("largest", space.largest), ("smallest", small)))


def gradients(network: Supernet) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def test_lambda_zero_gives_the_losses_of_plain_training(tiny_space: SearchSpace) -> None:
    """Ten steps of a loop written out here, beside ten of ours: the same losses to the last bit."""
    ours, plain = network_of(tiny_space), network_of(tiny_space)
    optimizer = make_optimizer(ours, OptimizerConfig(weight_decay=0.0))
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    plan = plan_of(tiny_space)
    found, expected = [], []
    for seed in range(10):
        batch = batch_of(8, 0, seed)
        optimizer.zero_grad()
        rows = accumulate_gradients(ours, batch, plan, None, False, PLAIN)
        apply_gradients(ours, optimizer, 0.05, None)
        found.append([rows["largest"]["loss"], rows["smallest"]["loss"]])

        plain_optimizer.zero_grad()
        losses = []
        for _, architecture in plan.subnets:
            plain.set_active_subnet(architecture)
            images = batch.images_nchw.contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(plain(images), batch.labels)
            loss.backward()
            losses.append(loss.item())
        plain_optimizer.step()
        expected.append(losses)
    assert found == expected
    assert found[0] != found[-1]


def test_gradients_of_sub_networks_add_up(tiny_space: SearchSpace) -> None:
    batch, plan = batch_of(8, 0), plan_of(tiny_space)
    both = network_of(tiny_space)
    accumulate_gradients(both, batch, plan, None, False, PLAIN)
    total: dict[str, torch.Tensor] = {}
    for subnet in plan.subnets:
        one = network_of(tiny_space)
        accumulate_gradients(one, batch, dataclasses.replace(plan, subnets=(subnet,)), None, False, PLAIN)
        for name, gradient in gradients(one).items():
            total[name] = total.get(name, 0) + gradient
    for name, gradient in gradients(both).items():
        torch.testing.assert_close(gradient, total[name])


def test_the_gap_images_change_the_gradients_through_their_loss(tiny_space: SearchSpace) -> None:
    """With every train label right or wrong alike, swapping gap labels alone moves the gradient of the first layer."""
    batch = batch_of(6, 6)
    other = dataclasses.replace(batch, labels=torch.cat([batch.labels[:6], (batch.labels[6:] + 1) % 4]))
    with_gap = ObjectiveConfig(gap_weight=0.45, distillation_weight=0.0)
    found = []
    for choice in (batch, other):
        network = network_of(tiny_space)
        rows = accumulate_gradients(network, choice, plan_of(tiny_space), None, False, with_gap)
        assert rows["all"]["gap_loss"] is not None
        found.append(gradients(network)["stem.conv.conv.weight"])
    assert not torch.allclose(*found)


def test_the_largest_teaches_the_others_in_place(tiny_space: SearchSpace) -> None:
    config = ObjectiveConfig(gap_weight=0.0)
    rows = accumulate_gradients(network_of(tiny_space), batch_of(8, 0), plan_of(tiny_space), None, True, config)
    assert rows["largest"]["distillation"] is None
    assert rows["smallest"]["distillation"] is not None
    assert rows["all"]["distillation"] == rows["smallest"]["distillation"]


def test_a_frozen_teacher_teaches_all(tiny_space: SearchSpace) -> None:
    network = network_of(tiny_space)
    teacher = network.extract(tiny_space.largest).eval().requires_grad_(False)
    rows = accumulate_gradients(network, batch_of(8, 4), plan_of(tiny_space), teacher, False, ObjectiveConfig())
    assert rows["largest"]["distillation"] is not None
    assert rows["smallest"]["distillation"] is not None


def test_weight_decay_spares_bn_and_biases(tiny_space: SearchSpace) -> None:
    network = network_of(tiny_space)
    optimizer = make_optimizer(network, OptimizerConfig(weight_decay=0.1))
    spared = {id(p) for g in optimizer.param_groups if g["weight_decay"] == 0 for p in g["params"]}
    for name, parameter in network.named_parameters():
        is_norm_or_bias = ".bn." in name or name.endswith("bias")
        assert (id(parameter) in spared) is is_norm_or_bias, name
    assert all(group["nesterov"] for group in optimizer.param_groups)


def test_a_clipped_update_is_short(tiny_space: SearchSpace) -> None:
    network = network_of(tiny_space)
    optimizer = make_optimizer(network, OptimizerConfig(weight_decay=0.0))
    before = [p.detach().clone() for p in network.parameters()]
    accumulate_gradients(network, batch_of(8, 0), plan_of(tiny_space), None, False, PLAIN)
    apply_gradients(network, optimizer, 1.0, clip_norm=0.01)
    moved = (
        sum(float((p.detach() - b).square().sum()) for p, b in zip(network.parameters(), before, strict=True)) ** 0.5
    )
    assert moved == pytest.approx(0.019, rel=1e-2)  # Nesterov's first step is 1.9 gradients long


def test_a_loss_that_is_not_finite_is_refused(tiny_space: SearchSpace) -> None:
    network, batch = network_of(tiny_space), batch_of(8, 0)
    batch.images_nchw[0, 0, 0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match="loss nan at step 0 in r16"):
        accumulate_gradients(network, batch, plan_of(tiny_space), None, False, PLAIN)


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone(tiny_space: SearchSpace) -> None:
    network = network_of(tiny_space)
    optimizer = make_optimizer(network, OptimizerConfig())
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for parameter in network.parameters():
        parameter.grad = torch.full_like(parameter, float("inf"))
    with pytest.raises(NonFiniteError, match="gradient norm"):
        apply_gradients(network, optimizer, 0.1, None)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_terms_are_averaged_where_they_are_there() -> None:
    assert mean_terms([{"a": 1.0, "b": None}, {"a": 3.0, "b": 5.0}]) == {"a": 2.0, "b": 5.0}
    assert mean_terms([{"a": None}]) == {"a": None}


def test_micro_batches_of_like_images_add_up_to_the_whole_batch(tiny_space: SearchSpace) -> None:
    """The same images twice: each half has the BN statistics of the whole."""
    half = batch_of(4, 2)
    images = torch.cat([half.images_nchw[:4]] * 2 + [half.images_nchw[4:]] * 2)
    labels = torch.cat([half.labels[:4]] * 2 + [half.labels[4:]] * 2)
    batch, found = Batch(images, labels, 8), []
    for count in (1, 2):
        network = network_of(tiny_space)
        execution = Execution(num_micro_batches=count)
        rows = accumulate_gradients(
            network, batch, plan_of(tiny_space), None, True, ObjectiveConfig(gap_weight=0.45), execution
        )
        found.append((rows, gradients(network)))
    assert found[0][0]["all"] == pytest.approx(found[1][0]["all"], rel=1e-5)
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient, rtol=1e-3, atol=1e-5, msg=name)


def test_activation_checkpointing_changes_no_gradient(tiny_space: SearchSpace) -> None:
    found = []
    for saves in (False, True):
        network = network_of(tiny_space)
        network.activation_checkpointing = saves
        accumulate_gradients(network, batch_of(8, 0), plan_of(tiny_space), None, True, ObjectiveConfig(gap_weight=0.0))
        found.append(gradients(network))
    assert set(found[0]) == set(found[1])
    for name, gradient in found[0].items():
        assert torch.equal(found[1][name], gradient), name


def test_reduced_precision_stays_near_full_precision(tiny_space: SearchSpace) -> None:
    losses = []
    for precision in ("f32", "bf16"):
        network = network_of(tiny_space)
        execution = Execution.of(network, World(), precision, 1, True)  # type: ignore[arg-type]
        rows = accumulate_gradients(
            network, batch_of(8, 4), plan_of(tiny_space), None, True, ObjectiveConfig(), execution
        )
        assert all(g.dtype == torch.float32 for g in gradients(network).values())
        losses.append(rows["all"]["loss"])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_a_scaled_loss_makes_the_same_update(tiny_space: SearchSpace) -> None:
    """f16 gradients are scaled up while they are small numbers, and down again before the update."""
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        network = network_of(tiny_space)
        optimizer = make_optimizer(network, OptimizerConfig())
        accumulate_gradients(network, batch_of(8, 0), plan_of(tiny_space), None, False, PLAIN, Execution(scaler=scaler))
        assert apply_gradients(network, optimizer, 0.1, 5.0, scaler)
        found.append(network.state_dict())
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, msg=name)


def test_an_overflow_under_a_scaler_skips_the_update_and_scales_less(tiny_space: SearchSpace) -> None:
    network, scaler = network_of(tiny_space), torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = make_optimizer(network, OptimizerConfig())
    accumulate_gradients(network, batch_of(8, 0), plan_of(tiny_space), None, False, PLAIN, Execution(scaler=scaler))
    network.stem.conv.conv.weight.grad = torch.full_like(network.stem.conv.conv.weight, float("inf"))
    before = {name: tensor.clone() for name, tensor in network.named_parameters()}
    assert not apply_gradients(network, optimizer, 0.1, None, scaler)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.named_parameters())
    assert scaler.get_scale() == 512.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_recurs_is_compiled_and_computes_the_same(tiny_space: SearchSpace) -> None:
    found = []
    for compiles in (False, True):
        network = network_of(tiny_space)
        if compiles:
            network.compile_recurring()
        rows = accumulate_gradients(network, batch_of(8, 4), plan_of(tiny_space), None, True, ObjectiveConfig())
        found.append((rows["all"], gradients(network)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    for name, gradient in found[0][1].items():
        apart = (found[1][1][name] - gradient).norm()
        # an hswish whose input rounds to the other side of -3 has another derivative there
        assert apart < 1e-2 * gradient.norm() + 1e-6, name
