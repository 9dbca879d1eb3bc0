"""broadcast_parameters and broadcast_optimizer_state: every rank starts as the root, unchanged."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from torch import nn

import ciranda.torch as hvd


def different_model() -> nn.Sequential:
    torch.manual_seed(hvd.rank())
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def train_alone(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()


def flatten(state: Any) -> list[Any]:
    if isinstance(state, torch.Tensor):
        return [list(state.shape), str(state.dtype), state.double().flatten().tolist()]
    if isinstance(state, dict):
        return [(key, flatten(value)) for key, value in state.items()]
    if isinstance(state, (list, tuple)):
        return [flatten(value) for value in state]
    return [state]


def equal_on_all_ranks(state: Any) -> bool:
    return len({repr(flatten(other)) for other in hvd.allgather_object(state)}) == 1


@on_ranks(2, 3)
def test_state_dict_with_integer_buffers() -> None:
    for root in range(hvd.size()):
        model = different_model()
        model[1].num_batches_tracked.fill_(10 + hvd.rank())
        before = copy.deepcopy(model.state_dict())
        hvd.broadcast_parameters(model.state_dict(), root_rank=root)
        assert equal_on_all_ranks(model.state_dict())
        assert model[1].num_batches_tracked == 10 + root
        if hvd.rank() == root:
            assert flatten(model.state_dict()) == flatten(before)


@on_ranks(2)
def test_lists_generators_and_odd_tensors() -> None:
    rank = float(hvd.rank())
    tensors = {
        "transposed": torch.full((3, 4), rank).t(),
        "strided": torch.full((4, 6), rank)[:, ::2],
        "scalar": torch.tensor(rank),
        "empty": torch.ones(0, 3),
        "flags": torch.tensor([hvd.rank() == 1]),
        "half": torch.full((3,), rank, dtype=torch.bfloat16),
        "trained": nn.Parameter(torch.full((2,), rank)),
        "images": torch.full((2, 3, 4, 4), rank).to(memory_format=torch.channels_last),
    }
    kept = {name: (tensor, tensor.stride()) for name, tensor in tensors.items()}
    hvd.broadcast_parameters(list(tensors.items()), root_rank=1)
    for name, (tensor, strides) in kept.items():
        assert (tensor == 1).all(), name
        assert tensor.stride() == strides
    model = different_model()
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    assert equal_on_all_ranks(dict(model.named_parameters()))
    hvd.broadcast_parameters({}, 0)
    hvd.broadcast_parameters({"note": "not a tensor", "count": 3}, 0)
    with pytest.raises(ValueError, match="state_dict"):
        hvd.broadcast_parameters(list(model.parameters()), 0)


@on_ranks(2, 3)
def test_ranks_get_the_roots_state_and_no_step_is_run() -> None:
    for make in (
        lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda groups: torch.optim.Adam(groups, lr=0.01, weight_decay=0.1),
        lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True, fused=True),
        lambda groups: torch.optim.Adagrad(groups, lr=0.01),
        lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
    ):
        model = different_model()
        optimizer = make(
            [
                {"params": model[0].parameters(), "lr": 0.5 + hvd.rank()},
                {"params": [*model[1].parameters(), *model[2].parameters()]},
            ]
        )
        root = 1
        train_alone(model, optimizer, steps=3 if hvd.rank() == root else hvd.rank() * 2)
        weights = copy.deepcopy(model.state_dict())
        state = copy.deepcopy(optimizer.state_dict())
        hvd.broadcast_optimizer_state(optimizer, root_rank=root)
        assert flatten(model.state_dict()) == flatten(weights)
        assert all(p.grad is None for p in model.parameters()) == (hvd.rank() == 0)
        assert equal_on_all_ranks(optimizer.state_dict())
        assert optimizer.param_groups[0]["lr"] == 0.5 + root
        if hvd.rank() == root:
            assert flatten(optimizer.state_dict()) == flatten(state)
        steps = [entry["step"] for entry in optimizer.state.values() if "step" in entry]
        assert all(step == 3 for step in steps)
        hvd.broadcast_parameters(model.state_dict(), root)
        optimizer = hvd.DistributedOptimizer(optimizer)
        optimizer.zero_grad()
        model(torch.ones(5, 4) * hvd.rank()).square().sum().backward()
        optimizer.step()
        assert equal_on_all_ranks(dict(model.named_parameters()))
        assert equal_on_all_ranks(optimizer.state_dict())


@on_ranks(2)
def test_a_root_without_state_clears_the_others() -> None:
    model = different_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + hvd.rank()))
    if hvd.rank() == 1:
        train_alone(model, optimizer, steps=1)
    hvd.broadcast_optimizer_state(optimizer, 0, model=model)
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.1


@on_ranks(2)
def test_wrapped_optimizers_and_learning_rates_that_are_tensors() -> None:
    model = different_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1 * (1 + hvd.rank())))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert equal_on_all_ranks(optimizer.state_dict())
    optimizer.zero_grad()
    model(torch.ones(5, 4) * hvd.rank()).square().sum().backward()
    optimizer.step()
    scheduler.step()
    assert equal_on_all_ranks(dict(model.named_parameters()))


@on_ranks(2)
def test_numbers_of_numpy_travel_as_pythons() -> None:
    numpy = pytest.importorskip("numpy")
    model = different_model()
    betas = (numpy.float64(0.5), 0.25 * (1 + hvd.rank()))
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=betas)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: numpy.cos(epoch + hvd.rank()))
    optimizer.param_groups[0]["note"] = {"seen": [numpy.int64(3 + hvd.rank())]}
    assert type(optimizer.param_groups[0]["lr"]) is numpy.float64
    hvd.broadcast_optimizer_state(optimizer, 1)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"]) == (numpy.cos(1), (0.5, 0.5))
    assert group["note"] == {"seen": [4]}
    if hvd.rank() == 0:
        assert [type(group["lr"]), type(group["betas"][0])] == [float, float]


@on_ranks(2)
def test_lbfgs_is_refused() -> None:
    optimizer = torch.optim.LBFGS(different_model().parameters())
    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(optimizer, 0)


@on_ranks(2)
def test_a_state_that_the_root_cannot_give_raises_on_every_rank() -> None:
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    groups = [{"params": [parameter]} for parameter in parameters]
    optimizer = hvd.DistributedOptimizer(torch.optim.Adagrad(groups), shared_step=False)
    del optimizer.param_groups[0]  # Adagrad's state speaks of it, and torch gives no state_dict()
    error, text = (KeyError, "") if hvd.rank() == 0 else (ValueError, "rank 0 has no state to send")
    with pytest.raises(error, match=text):
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)


@on_ranks(2)
def test_a_root_without_state_leaves_gradients_of_zeros_as_in_horovod() -> None:
    model = different_model()
    model[1].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    weights = copy.deepcopy(model.state_dict())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    assert flatten(model.state_dict()) == flatten(weights), "unlike in Horovod, no step was made"
    for parameter in model.parameters():
        assert (parameter.grad is None) != parameter.requires_grad
        assert parameter.grad is None or not parameter.grad.any()
