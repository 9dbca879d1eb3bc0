"""Horovod's join(): ranks with fewer batches than others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import run_ranks, values_of
from torch import nn

import ciranda.torch as hvd


def uneven() -> list[Any]:
    hvd.init()
    sums = []
    last = []
    for epoch in range(2):
        for batch in range(2 * hvd.rank() + 1 + epoch):
            total = hvd.allreduce(torch.ones(5000), op=hvd.Sum)  # without a name
            average = hvd.grouped_allreduce([torch.full((3,), 6.0)] * 2, name=f"{batch}")
            sums.append([total[-1].item(), average[1][0].item()])
            hvd.barrier()
        last.append(hvd.join())
    return [sums, last]


def test_joined_ranks_add_zeros_and_count() -> None:
    by_rank = values_of(run_ranks(uneven, 3))
    for rank, (sums, last) in enumerate(by_rank):
        assert last == [2, 2]
        expected = []
        for epoch in range(2):
            for batch in range(2 * rank + 1 + epoch):
                there = sum(batch < 2 * other + 1 + epoch for other in range(3))
                expected.append([there, 6.0 * there / 3])
        assert sums == expected


def refused() -> list[str]:
    hvd.init()
    texts = []
    if hvd.rank() == 0:
        ones = torch.ones(4)
        for action in (
            lambda: hvd.allgather(ones, name="a"),
            lambda: hvd.broadcast(ones, 0, name="a"),
            lambda: hvd.alltoall(ones, name="a"),
            lambda: hvd.reducescatter(ones, name="a"),
            lambda: hvd.gather(ones, 0, name="a"),
            lambda: hvd.scatter(ones, 0, name="a"),
            lambda: hvd.reduce(ones, 0, name="a"),
            lambda: hvd.allreduce(ones, op=hvd.Min, name="a"),
            lambda: hvd.allreduce(ones, op=hvd.Max, name="a"),
            lambda: hvd.allreduce(ones, op=hvd.Product, name="a"),
            lambda: hvd.grouped_allgather([ones, ones], name="a"),
            lambda: hvd.broadcast_object(1, 0),
            lambda: hvd.broadcast_parameters({"a": ones}, 0),
            lambda: hvd.add_process_set([0]),
        ):
            with pytest.raises(RuntimeError) as raised:
                action()
            texts.append(str(raised.value))
    assert hvd.join(device=-1) == 0  # Horovod's argument
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
    return texts


def test_what_has_no_zero_raises_where_it_is_called_and_the_job_goes_on() -> None:
    texts, nothing = values_of(run_ranks(refused, 2))
    assert nothing == []
    assert len(texts) == 14
    for text in texts:
        assert "rank 1 has joined" in text


def join_beside_sets() -> list[Any]:
    """Rank 1 joins first; rank 0 shares a set with it and one with rank 2."""
    with_joined, without = hvd.ProcessSet([0, 1]), hvd.ProcessSet([0, 2])
    hvd.init(process_sets=[with_joined, without])
    found: list[Any] = []
    if hvd.rank() == 0:
        six = torch.tensor([6.0])
        found.append(hvd.allreduce(six, op=hvd.Sum, process_set=with_joined).item())
        found.append(hvd.allreduce(six, process_set=with_joined).item())
        hvd.barrier(process_set=with_joined)
        with pytest.raises(RuntimeError, match="rank 1 has joined"):
            hvd.allgather(six, process_set=with_joined)
    if hvd.rank() != 1:
        found.append(hvd.allgather(torch.tensor([hvd.rank()]), process_set=without).tolist())
    if hvd.rank() == 2:
        assert hvd.synchronize(hvd.allreduce_async(torch.ones(1), op=hvd.Sum, name="x")).item() == 2
    if hvd.rank() == 0:
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="x").item() == 2
    return [found, hvd.join()]


def test_joined_ranks_count_in_their_sets_and_in_no_other() -> None:
    zero, one, two = values_of(run_ranks(join_beside_sets, 3))
    assert zero[0] == [6, 3, [0, 2]] and one[0] == [] and two[0] == [[0, 2]]
    assert zero[1] == one[1] == two[1] != 1


BATCHES = (3, 5)  # of rank 0 and rank 1


def batch_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def model_of_all() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def train_unevenly() -> list[float]:
    hvd.init()
    model = model_of_all()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for step in range(BATCHES[hvd.rank()]):
        optimizer.zero_grad()
        model(batch_of(hvd.rank(), step)).square().mean().backward()
        optimizer.step()
    last = hvd.join()
    hvd.broadcast_parameters(model.state_dict(), root_rank=last)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def test_an_optimizer_goes_on_without_ranks_that_have_joined() -> None:
    model = model_of_all()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(max(BATCHES)):
        optimizer.zero_grad()
        there = [rank for rank in range(2) if step < BATCHES[rank]]
        sum(model(batch_of(rank, step)).square().mean() for rank in there).div(2).backward()
        optimizer.step()
    alone = torch.cat([p.detach().flatten() for p in model.parameters()])
    for trained in values_of(run_ranks(train_unevenly, 2)):
        torch.testing.assert_close(torch.tensor(trained), alone, rtol=1e-5, atol=1e-6)


def test_one_rank_joins_alone() -> None:
    assert values_of(run_ranks(join_alone, 1)) == [0]


def join_alone() -> int:
    hvd.init()
    return hvd.join()
