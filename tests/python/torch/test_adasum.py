"""Adasum, against its definition in NumPy: as an operation and as the optimizer's op."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from rank_checks import on_ranks
from torch import nn

import ciranda.torch as hvd
from ciranda.errors import MismatchError, UnsupportedError

Array = np.ndarray[Any, Any]


def pair(a: Array, b: Array) -> Array:
    dot, of_a, of_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
    return (1 - dot / (2 * of_a) if of_a else 1) * a + (1 - dot / (2 * of_b) if of_b else 1) * b


def adasum(gradients: list[Array]) -> Array:
    if len(gradients) == 1:
        return gradients[0]
    middle = 1 << (len(gradients) - 1).bit_length() - 1
    return pair(adasum(gradients[:middle]), adasum(gradients[middle:]))


def tensor_of(rank: int, seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def expected(seed: int, *shape: int, ranks: list[int] | None = None) -> torch.Tensor:
    ranks = list(range(hvd.size())) if ranks is None else ranks
    model = adasum([tensor_of(rank, seed, *shape).numpy() for rank in ranks])
    return torch.from_numpy(np.asarray(model))


@on_ranks(1, 2, 3, 4)
def test_an_allreduce_is_the_models() -> None:
    for seed, shape in enumerate([(), (1,), (7, 3), (300, 200), (0, 4)]):
        own = tensor_of(hvd.rank(), seed, *shape)
        for dtype, tolerance in [(torch.float64, 1e-12), (torch.float32, 1e-6)]:
            found = hvd.allreduce(own.to(dtype), op=hvd.Adasum)
            torch.testing.assert_close(
                found.double(), expected(seed, *shape), rtol=tolerance, atol=tolerance
            )


@on_ranks(2, 3)
def test_half_precision_is_rounded_once() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        own = [tensor_of(rank, 5, 999).to(dtype) for rank in range(hvd.size())]
        found = hvd.allreduce(own[hvd.rank()], op=hvd.Adasum)
        model = torch.from_numpy(adasum([tensor.double().numpy() for tensor in own]))
        torch.testing.assert_close(found, model.to(dtype), rtol=1e-6, atol=1e-6)


@on_ranks(2, 3)
def test_forms_groups_scales_and_sets() -> None:
    rank = hvd.rank()
    in_place = tensor_of(rank, 1, 50)
    assert hvd.allreduce_(in_place, op=hvd.Adasum) is in_place
    torch.testing.assert_close(in_place, expected(1, 50))
    handle = hvd.allreduce_async(tensor_of(rank, 2, 50), name="a", op=hvd.Adasum)
    group = [tensor_of(rank, seed, 10 * seed) for seed in (3, 4)]
    results = hvd.grouped_allreduce(group, op=hvd.Adasum, prescale_factor=4, postscale_factor=0.5)
    for seed, result in zip((3, 4), results, strict=True):
        torch.testing.assert_close(result, 2 * expected(seed, 10 * seed))
    torch.testing.assert_close(hvd.synchronize(handle), expected(2, 50))
    some = hvd.add_process_set(range(1, hvd.size()))
    if some.included():
        found = hvd.allreduce(tensor_of(rank, 6, 9), op=hvd.Adasum, process_set=some)
        torch.testing.assert_close(found, expected(6, 9, ranks=some.ranks))
    hvd.remove_process_set(some)


@on_ranks(2)
def test_the_gradient_is_the_adasum_of_the_gradients() -> None:
    own = tensor_of(hvd.rank(), 1, 20).requires_grad_()
    weights = tensor_of(hvd.rank(), 2, 20)
    (hvd.allreduce(own, op=hvd.Adasum) * weights).sum().backward()
    torch.testing.assert_close(own.grad, expected(2, 20))


@on_ranks(2)
def test_what_it_is_not_for_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="floating point tensors, not int64; use Average or Sum"):
        hvd.allreduce(torch.ones(3, dtype=torch.int64), op=hvd.Adasum)
    with pytest.raises(UnsupportedError, match="op=Adasum needs whole tensors"):
        hvd.reducescatter(torch.ones(4), op=hvd.Adasum)
    with pytest.raises(MismatchError, match="Adasum"):
        hvd.allreduce(torch.ones(3), name="x", op=hvd.Adasum if hvd.rank() == 0 else hvd.Sum)


# --- the optimizer -------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return model(tensor_of(rank, step, 12, 6)).square().sum()


def steps_of_the_model(make: Any, steps: int) -> list[torch.Tensor]:
    """Each rank's optimizer by itself from the common parameters, then Adasum of the changes."""
    models = [network() for _ in range(hvd.size())]
    optimizers = [make(model.parameters()) for model in models]
    for step in range(steps):
        starts = [parameter.detach().clone() for parameter in models[0].parameters()]
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        for index, start in enumerate(starts):
            own = [list(model.parameters())[index] for model in models]
            changes = [(parameter.detach() - start).numpy() for parameter in own]
            ends = start + torch.from_numpy(adasum(changes))
            for parameter in own:
                parameter.data.copy_(ends)
    return [parameter.detach() for parameter in models[0].parameters()]


@on_ranks(2, 3)
def test_the_optimizer_combines_what_each_rank_has_changed() -> None:
    makers = [
        lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    ]
    for make in makers:
        model = network()
        optimizer = hvd.DistributedOptimizer(
            make(model.parameters()), model.named_parameters(), op=hvd.Adasum
        )
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), step).backward()
            optimizer.step()
            scheduler.step()
        for found, wanted in zip(model.parameters(), steps_of_the_model(make, 4), strict=True):
            torch.testing.assert_close(found.detach(), wanted, rtol=1e-6, atol=1e-9)
        assert "Adasum" in optimizer.why_not_shared()


@on_ranks(2)
def test_the_optimizer_takes_closures_and_compression_and_later_parameters() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model[0].parameters(), lr=0.1),
        op=hvd.Adasum,
        compression=hvd.Compression.fp16,
        backward_passes_per_step=2,
    )
    optimizer.add_param_group({"params": list(model[2].parameters())})

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, hvd.rank(), 1) + loss_of(model, hvd.rank(), 2)
        loss.backward()
        return loss

    assert optimizer.step(closure) > 0
    for parameter, before in zip(model.parameters(), network().parameters(), strict=True):
        assert not torch.equal(parameter, before)
        first = hvd.broadcast(parameter.detach(), 0)
        assert torch.equal(parameter, first)
    plain = copy.deepcopy(optimizer)
    assert type(plain) is torch.optim.SGD


@on_ranks(2)
def test_options_of_reduced_gradients_are_refused() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    refused = [{"max_grad_norm": 1.0}, {"groups": 2}, {"shared_step": "host"}]
    for option in refused:
        with pytest.raises(ValueError, match=f"no gradients are reduced.*{next(iter(option))}"):
            hvd.DistributedOptimizer(optimizer, op=hvd.Adasum, **option)
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
    with (
        pytest.raises(ValueError, match="call step\\(\\) without it"),
        optimizer.skip_synchronize(),
    ):
        pass
