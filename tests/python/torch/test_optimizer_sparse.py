"""Sparse gradients: rows of all ranks are gathered, and leave the buckets."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from torch import nn

import ciranda.torch as hvd

ROWS = 5000


class Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.words = nn.Embedding(ROWS, 4, sparse=True)
        self.head = nn.Linear(4, 1)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(indices)).square().mean()


def indices(rank: int, step: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randint(0, 20, (6,), generator=generator)  # some of them on both ranks


def mean_gradients(model: Embedder, step: int) -> Embedder:
    alone = copy.deepcopy(model)
    alone.zero_grad()
    for rank in range(hvd.size()):
        (alone(indices(rank, step)) / hvd.size()).backward()
    return alone


def assert_same_gradient(parameter: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(parameter.grad.to_dense(), expected.grad.to_dense())


def wrapped(model: nn.Module, make: Any = None, **options: Any) -> Any:
    optimizer = make(model) if make else torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


@on_ranks(2, 3)
def test_sparse_gradients_are_gathered() -> None:
    for options in ({}, {"compression": hvd.Compression.fp16}, {"backward_passes_per_step": 1}):
        model = Embedder()
        optimizer = wrapped(model, **options)
        for step in range(4):
            optimizer.zero_grad(set_to_none=step != 2)
            model(indices(hvd.rank(), step)).backward()
            expected = mean_gradients(model, step)
            assert model.words.weight.grad.is_sparse
            assert_same_gradient(model.words.weight, expected.words.weight)
            if not options:
                assert_same_gradient(model.head.weight, expected.head.weight)
            optimizer.step()
        assert torch.equal(hvd.broadcast(model.words.weight.detach(), 0), model.words.weight)


@on_ranks(2)
def test_sparse_parameters_leave_their_bucket() -> None:
    model = Embedder()
    optimizer = wrapped(model)
    reducer = optimizer._ciranda_reducer
    dense_bytes = ROWS * 4 * 4
    assert reducer.arena_bytes() > dense_bytes
    for step in range(3):
        optimizer.zero_grad()
        before = hvd.stats()["bytes"]
        model(indices(hvd.rank(), step)).backward()
        moved = hvd.stats()["bytes"] - before
        assert (moved > dense_bytes) == (step == 0)
        assert reducer.arena_bytes() < dense_bytes
        optimizer.step()


@on_ranks(2)
def test_sum_of_sparse_gradients() -> None:
    model = Embedder()
    optimizer = wrapped(model, op=hvd.Sum)
    model(indices(hvd.rank())).backward()
    total = mean_gradients(model, 0).words.weight.grad.to_dense() * hvd.size()
    torch.testing.assert_close(model.words.weight.grad.to_dense(), total)
    optimizer.step()


@on_ranks(2)
def test_sparse_adam() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SparseAdam([model.weight], lr=0.1)

    torch.manual_seed(2)
    model = nn.Embedding(20, 3, sparse=True)
    alone = copy.deepcopy(model)
    optimizer, optimizer_alone = wrapped(model, make), make(alone)
    for step in range(4):
        optimizer.zero_grad()
        model(indices(hvd.rank(), step)).square().sum().backward()
        optimizer.step()
        optimizer_alone.zero_grad()
        for rank in range(2):
            (alone(indices(rank, step)).square().sum() / 2).backward()
        optimizer_alone.step()
    torch.testing.assert_close(model.weight, alone.weight)


@on_ranks(2)
def test_ranks_without_a_sparse_gradient_take_part() -> None:
    """Before and after the parameter has left its bucket; and when no rank has one."""
    model = Embedder()
    optimizer = wrapped(model)
    for having in ({1}, {0}, set(), {0, 1}, {1}):
        optimizer.zero_grad()
        model.head(torch.ones(1, 4)).sum().backward(retain_graph=False)
        if hvd.rank() in having:
            model.words(indices(hvd.rank())).sum().backward()
        else:
            model.head(torch.zeros(1, 4)).sum().backward()
        alone = copy.deepcopy(model)
        alone.zero_grad()
        for rank in having:
            (alone.words(indices(rank)).sum() / 2).backward()
        if having:
            assert_same_gradient(model.words.weight, alone.words.weight)
        else:
            assert model.words.weight.grad is None
        optimizer.step()


@on_ranks(2)
def test_dense_on_one_rank_and_sparse_on_the_other() -> None:
    """As with weights tied to an output layer that one rank's batch does not reach."""
    for first_all_sparse in (False, True):
        model = Embedder()
        optimizer = wrapped(model)
        if first_all_sparse:
            model(indices(hvd.rank())).backward()
            optimizer.step()
        for _ in range(2):
            optimizer.zero_grad()
            if hvd.rank() == 0:
                model.words.weight.sum().backward()
            else:
                model.words(torch.tensor([3, 3])).sum().backward()
            assert not model.words.weight.grad.is_sparse
            expected = torch.full((ROWS, 4), 0.5)
            expected[3] += 1.0
            torch.testing.assert_close(model.words.weight.grad, expected)
            optimizer.step()


@on_ranks(2)
def test_sparse_as_dense() -> None:
    model = Embedder()
    optimizer = wrapped(model, sparse_as_dense=True)
    for step in range(2):
        optimizer.zero_grad()
        model(indices(hvd.rank(), step)).backward()
        assert not model.words.weight.grad.is_sparse
        assert_same_gradient(model.words.weight, mean_gradients(model, step).words.weight)
        optimizer.step()


@on_ranks(2)
def test_gradients_sparse_in_every_dimension() -> None:
    model = nn.Linear(3, 4, bias=False)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = wrapped(model)
    place = torch.tensor([[hvd.rank(), 2, 0]])
    torch.gather(model.weight, 0, place, sparse_grad=True).sum().backward()
    expected = torch.zeros(4, 3)
    expected[[0, 1], 0] = 0.5
    expected[2, 1] = expected[0, 2] = 1.0
    torch.testing.assert_close(model.weight.grad.to_dense(), expected)
    optimizer.step()


@on_ranks(2)
def test_a_sparse_parameter_alone_in_half_precision() -> None:
    model = nn.Embedding(10, 2, sparse=True, dtype=torch.bfloat16)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = wrapped(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.tensor([hvd.rank(), 5])).sum().backward()
        dense = model.weight.grad.to_dense()
        assert dense[[0, 1]].eq(0.5).all()
        assert dense[5].eq(1.0).all()
        assert dense.sum() == 4
        optimizer.step()


@on_ranks(2)
def test_sparse_adam_takes_gradients_that_were_densified() -> None:
    for sparse_as_dense in (False, True):
        model = Embedder()
        alone = copy.deepcopy(model.words)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SparseAdam(model.words.parameters()), sparse_as_dense=sparse_as_dense
        )
        plain = torch.optim.SparseAdam(alone.parameters())
        hvd.broadcast_optimizer_state(optimizer, 0)
        for step in range(3):
            optimizer.zero_grad(), plain.zero_grad()
            model.words(indices(hvd.rank(), step)).square().sum().backward()
            for rank in range(2):
                (alone(indices(rank, step)).square().sum() / 2).backward()
            optimizer.step(), plain.step()
        torch.testing.assert_close(model.words.weight, alone.weight)


@on_ranks(2, 3)
def test_a_set_of_ranks_trains_sparse_embeddings() -> None:
    some = hvd.add_process_set(range(1, hvd.size()))
    model = Embedder()
    alone = copy.deepcopy(model)
    optimizer = wrapped(model, process_set=some)
    members = some.ranks if some.included() else [hvd.rank()]
    for step in range(2):
        optimizer.zero_grad()
        alone.zero_grad()
        model(indices(hvd.rank(), step)).backward()
        for rank in members:
            (alone(indices(rank, step)) / len(members)).backward()
        optimizer.step()
        torch.optim.SGD(alone.parameters(), lr=0.1).step()
    for found, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, wanted)
    hvd.remove_process_set(some)


@on_ranks(1, 2, 3)
def test_sparse_allreduce_adds_up_what_all_ranks_have() -> None:
    def part(rank: int, dtype: torch.dtype) -> torch.Tensor:
        places = torch.tensor([[rank, 0, 3], [1, rank, 2]])
        return torch.sparse_coo_tensor(places, torch.tensor([3, 5, -7 - rank]).to(dtype), (4, 5))

    for dtype in (torch.float32, torch.float64, torch.int64):
        total = sum(part(rank, dtype).to_dense() for rank in range(hvd.size()))
        finish = hvd.sparse_allreduce_async(part(hvd.rank(), dtype), name="s", op=hvd.Sum)
        assert torch.equal(finish().to_dense(), total)
        finish = hvd.sparse_allreduce_async(part(hvd.rank(), dtype))
        mode = None if dtype.is_floating_point else "trunc"
        averaged = torch.div(total, hvd.size(), rounding_mode=mode)
        found = finish()
        assert found.is_coalesced()
        torch.testing.assert_close(found.to_dense(), averaged)
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match=r"layout is torch.strided, not sparse_coo"):
            hvd.sparse_allreduce_async(torch.ones(3))
        with pytest.raises(ValueError, match="op must be Average or Sum"):
            hvd.sparse_allreduce_async(part(0, torch.float32), op=hvd.Max)


@on_ranks(3)
def test_rows_that_another_optimizer_reduces_are_left_alone() -> None:
    """On ranks 1 and 2 the model's gradients are those of a later optimizer, over these ranks."""
    part = hvd.add_process_set([1, 2])
    model, more = Embedder(), nn.Parameter(torch.ones(3))
    named = [*model.named_parameters(), ("more", more)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=0.1), named)
    later = wrapped(model, process_set=part)
    (model(indices(hvd.rank())) + more.sum()).backward()
    optimizer.synchronize()
    alone = copy.deepcopy(model)
    alone.zero_grad()
    for rank in (0,) if hvd.rank() == 0 else (1, 2):  # to rank 0 the others give nothing
        (alone(indices(rank)) / (3 if rank == 0 else 2)).backward()
    assert_same_gradient(model.words.weight, alone.words.weight)
    assert_same_gradient(model.head.weight, alone.head.weight)
    assert torch.equal(more.grad, torch.ones(3))
    del later
