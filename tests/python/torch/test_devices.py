"""Tensors that are not on the CPU, where no GPU is needed: torch's fake tensors only say that they
are on a device. What a GPU computes is tested in tests/python/gpu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from torch._subclasses.fake_tensor import FakeTensorMode

import ciranda.torch as hvd
from ciranda.errors import InvalidArgumentError, MismatchError, UnsupportedError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available(),
        reason="a fake tensor would be taken for a real one of the GPU here",
    ),
]


def on(device: str) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(4, device=device)


def collectives(tensor: torch.Tensor) -> list[Callable[[], Any]]:
    return [
        lambda: hvd.allreduce(tensor),
        lambda: hvd.allreduce_(tensor),
        lambda: hvd.allreduce_async_(tensor),
        lambda: hvd.grouped_allreduce_([tensor, tensor]),
        lambda: hvd.broadcast_(tensor, 0),
        lambda: hvd.allgather(tensor),
        lambda: hvd.alltoall(tensor),
        lambda: hvd.reducescatter(tensor),
        lambda: hvd.broadcast_parameters({"w": tensor}, 0),
    ]


@on_ranks(2)
def test_a_gpu_tensor_without_a_gpu_is_refused_in_one_sentence() -> None:
    for collective in collectives(on("cuda:0")):
        with pytest.raises(UnsupportedError) as refused:
            collective()
        said = str(refused.value)
        assert ": the tensor is on cuda:0, but " in said and "\n" not in said


@on_ranks(2)
def test_a_device_that_nothing_reduces_is_refused_in_one_sentence() -> None:
    for device in ("mps:0", "xpu:0"):
        for collective in collectives(on(device)):
            with pytest.raises(InvalidArgumentError, match=f"{device}; pass tensor.cpu\\(\\)"):
                collective()


@on_ranks(2)
def test_a_group_lies_on_one_device() -> None:
    for other in (torch.ones(4), on("cuda:1")):
        with pytest.raises(InvalidArgumentError, match="one tensor is on cuda:0 and another"):
            hvd.grouped_allreduce_([on("cuda:0"), other])


@on_ranks(2)
def test_parameters_on_a_gpu_need_one() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(on("cuda:0"))], lr=0.1)
    with pytest.raises(UnsupportedError, match=r"parameter 'group.0.param.0': .* on cuda:0, bu"):
        hvd.DistributedOptimizer(optimizer)


@on_ranks(2)
def test_ranks_do_not_share_the_step_of_a_gpu() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(on("cuda:0"))], lr=0.1)
    with pytest.raises(ValueError, match="is on cuda:0, but ranks share the step of CPU param"):
        hvd.DistributedOptimizer(optimizer, shared_step="host")


@on_ranks(2)
def test_ranks_that_train_on_different_kinds_of_device_are_told() -> None:
    tensor = on("cuda:0") if hvd.rank() == 1 else torch.ones(4)
    optimizer = torch.optim.SGD([torch.nn.Parameter(tensor)], lr=0.1)
    with pytest.raises(MismatchError, match=r"rank 1 has '.*' float32\[4\], .* trained, on cuda;"):
        hvd.DistributedOptimizer(optimizer)
