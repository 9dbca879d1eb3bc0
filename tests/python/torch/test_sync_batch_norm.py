"""SyncBatchNorm against BatchNorm over the joined batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from torch import nn

import ciranda.torch as hvd


def batch_of(rank: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 + rank)
    return (3 * torch.randn(shape, generator=generator, dtype=torch.float64) + rank).to(dtype)


def layers() -> list[tuple[nn.Module, tuple[int, ...]]]:
    return [
        (nn.BatchNorm1d(5), ()),
        (nn.BatchNorm1d(5), (7,)),
        (nn.BatchNorm2d(5, momentum=None), (3, 4)),
        (nn.BatchNorm2d(5, affine=False, eps=0.1), (3, 4)),
        (nn.BatchNorm3d(5, momentum=0.3, track_running_stats=False), (2, 3, 2)),
    ]


def prepared(layer: nn.Module) -> nn.Module:
    torch.manual_seed(4)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.double()


@on_ranks(1, 2, 3)
def test_it_is_batch_norm_over_the_joined_batch() -> None:
    rank, size = hvd.rank(), hvd.size()
    for plain, rest in layers():
        prepared(plain)
        layer = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
        for _ in range(3):
            rows = [2 + r for r in range(size)]  # every rank has another number
            joined = torch.cat([batch_of(r, rows[r], 5, *rest) for r in range(size)])
            joined.requires_grad_()
            own = batch_of(rank, rows[rank], 5, *rest).requires_grad_()
            wanted = plain(joined)
            found = layer(own)
            begin = sum(rows[:rank])
            piece = slice(begin, begin + rows[rank])
            torch.testing.assert_close(found, wanted[piece])
            (wanted.sigmoid() * joined.detach()).sum().backward()
            (found.sigmoid() * own.detach()).sum().backward()
            torch.testing.assert_close(own.grad, joined.grad[piece])
        for ours, theirs in zip(layer.parameters(), plain.parameters(), strict=True):
            summed = hvd.allreduce(ours.grad, op=hvd.Sum)  # as the sum of the ranks' losses
            torch.testing.assert_close(summed, theirs.grad)
        for ours, theirs in zip(layer.buffers(), plain.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)
        layer.eval(), plain.eval()
        torch.testing.assert_close(layer(own), plain(own))


@on_ranks(1, 3)
def test_second_derivatives_are_those_over_the_joined_batch() -> None:
    rank, size = hvd.rank(), hvd.size()
    for plain, rest in layers():
        prepared(plain)
        layer = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
        joined = torch.cat([batch_of(r, 2, 5, *rest) for r in range(size)]).requires_grad_()
        own = batch_of(rank, 2, 5, *rest).requires_grad_()
        for model, batch in ((plain, joined), (layer, own)):
            loss = (model(batch).sigmoid() * batch.detach()).sum()
            (slope,) = torch.autograd.grad(loss, batch, create_graph=True)
            (slope.square() * batch.detach()).sum().backward()
        torch.testing.assert_close(own.grad, joined.grad[2 * rank : 2 * rank + 2])
        for ours, theirs in zip(layer.parameters(), plain.parameters(), strict=True):
            summed = hvd.allreduce(ours.grad, op=hvd.Sum)
            torch.testing.assert_close(summed, theirs.grad)


@on_ranks(2)
def test_a_rank_without_rows_takes_part() -> None:
    plain = prepared(nn.BatchNorm2d(5))
    layer = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    rows = 3 if hvd.rank() == 0 else 0
    own = batch_of(hvd.rank(), rows, 5, 2, 2).requires_grad_()
    found = layer(own)
    found.square().sum().backward()
    assert own.grad.shape == own.shape
    plain(batch_of(0, 3, 5, 2, 2))
    torch.testing.assert_close(layer.running_var, plain.running_var)


@on_ranks(2)
def test_half_precision_memory_formats_and_autocast() -> None:
    own = batch_of(hvd.rank(), 4, 5, 6, 6, dtype=torch.float32)
    own = own.to(memory_format=torch.channels_last)
    layer = hvd.SyncBatchNorm(5)
    assert layer(own).is_contiguous(memory_format=torch.channels_last)
    half = own.bfloat16().requires_grad_()
    found = hvd.SyncBatchNorm(5)(half)
    found.sum().backward()
    assert found.dtype is half.grad.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), layer(half.float()), rtol=0.02, atol=0.02)
    with torch.autocast("cpu", torch.bfloat16):
        nn.Sequential(nn.Conv2d(5, 5, 1), layer)(own).sum().backward()


@on_ranks(2)
def test_a_model_trains_like_one_process_with_the_joined_batch() -> None:
    def network() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 1)
        ).double()

    plain, model = network(), network()
    model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(model[1], hvd.SyncBatchNorm)
    assert list(model[1].state_dict()) == list(plain[1].state_dict())
    alone = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters()
    )
    for step in range(4):
        batches = [batch_of(7 * step + rank, 3, 2, 6, 6) for rank in range(2)]
        alone.zero_grad(), optimizer.zero_grad()
        plain(torch.cat(batches)).square().mean().backward()
        model(batches[hvd.rank()]).square().mean().backward()
        alone.step(), optimizer.step()
    for found, wanted in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@on_ranks(2)
def test_sets_and_what_is_refused() -> None:
    alone = hvd.add_process_set([hvd.size() - 1])
    layer = hvd.SyncBatchNorm(5, process_set=alone)
    own = batch_of(hvd.rank(), 4, 5, dtype=torch.float32)
    if alone.included():
        torch.testing.assert_close(layer(own), nn.BatchNorm1d(5)(own))
    hvd.remove_process_set(alone)
    with pytest.raises(ValueError, match="at least 2D input, got 1D"):
        hvd.SyncBatchNorm(5)(torch.ones(5))
    with pytest.raises(ValueError, match="expected 5 channels in dimension 1, got 4"):
        hvd.SyncBatchNorm(5)(torch.ones(3, 4))
    with pytest.raises(ValueError, match=r"more than 1 value per channel .* over all ranks"):
        hvd.SyncBatchNorm(5)(torch.ones(1 - hvd.rank(), 5))
    with pytest.raises(ValueError, match="a lazy layer has no shape yet"):
        hvd.SyncBatchNorm.convert_sync_batchnorm(nn.LazyBatchNorm1d())


@on_ranks(2)
def test_a_pass_is_one_collective() -> None:
    layer = hvd.SyncBatchNorm(5)
    own = batch_of(hvd.rank(), 4, 5, dtype=torch.float32).requires_grad_()

    def operations(run: Any) -> float:
        before = hvd.stats()["operations"]
        run()
        return hvd.stats()["operations"] - before

    output: list[torch.Tensor] = []
    assert operations(lambda: output.append(layer(own))) == 1
    assert operations(lambda: output[0].sum().backward()) == 1
