"""DistributedOptimizer over a model that DistributedDataParallel wraps too, as frameworks do
unasked: breaks when our reduction touches a gradient before DDP's hook has copied it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from rank_checks import on_ranks
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import ciranda.torch as hvd


@contextmanager
def gloo_of_torch() -> Iterator[None]:
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", store, rank=hvd.rank(), world_size=hvd.size())
    try:
        yield
    finally:
        hvd.barrier()
        distributed.destroy_process_group()


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 400), nn.Tanh(), nn.Linear(400, 300), nn.Linear(300, 3))


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + rank))


def loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    return (model(batch(rank, step)) - rank).square().mean()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def assert_trains_as_one_process(ddp_first: bool, **options: object) -> None:
    ranks, steps = range(hvd.size()), range(4)
    expected = network()
    alone = optimizer_of(expected)
    for step in steps:
        alone.zero_grad()
        torch.stack([loss(expected, rank, step) for rank in ranks]).mean().backward()
        alone.step()
    for mode in ("auto", "host", False):
        model = network()
        wrapped = DistributedDataParallel(model, **options) if ddp_first else None
        optimizer = hvd.DistributedOptimizer(optimizer_of(model), shared_step=mode)
        wrapped = wrapped or DistributedDataParallel(model, **options)
        for step in steps:
            optimizer.zero_grad()
            loss(wrapped, hvd.rank(), step).backward()
            optimizer.step()
        torch.testing.assert_close(list(model.parameters()), list(expected.parameters()))


@on_ranks(2)
def test_a_warning_names_ddp_once() -> None:
    with gloo_of_torch(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_trains_as_one_process(ddp_first=True)
    (text,) = [str(each.message) for each in caught if "DistributedData" in str(each.message)]
    assert "docs/migrate-from-ddp.md" in text


@on_ranks(2, 3)
def test_ddp_made_before_the_optimizer() -> None:
    with gloo_of_torch():
        assert_trains_as_one_process(ddp_first=True)


@on_ranks(2)
def test_ddp_made_after_the_optimizer() -> None:
    with gloo_of_torch():
        assert_trains_as_one_process(ddp_first=False)


@on_ranks(2)
def test_ddp_whose_gradients_are_views_of_its_buckets() -> None:
    with gloo_of_torch():
        for ddp_first in (True, False):
            assert_trains_as_one_process(ddp_first, gradient_as_bucket_view=True)


@on_ranks(2)
def test_gradients_added_up_without_ddps_reduction() -> None:
    with gloo_of_torch():
        model, expected = network(), network()
        wrapped = DistributedDataParallel(model)
        optimizer = hvd.DistributedOptimizer(optimizer_of(model))
        alone = optimizer_of(expected)
        for step in range(3):
            optimizer.zero_grad()
            alone.zero_grad()
            for part in (2 * step, 2 * step + 1):
                with wrapped.no_sync():
                    loss(wrapped, hvd.rank(), part).backward()
                joined = [loss(expected, rank, part) for rank in range(hvd.size())]
                torch.stack(joined).mean().backward()
            optimizer.step()
            alone.step()
        torch.testing.assert_close(list(model.parameters()), list(expected.parameters()))
