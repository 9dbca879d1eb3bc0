"""send and recv: two ranks alone take part, and what does not fit is told to both."""

from __future__ import annotations

import pytest
import torch
from backends import over_every_backend
from rank_checks import on_ranks

import ciranda.torch as hvd
from ciranda.errors import MismatchError


@over_every_backend
@on_ranks(2, 3, one_elsewhere=True)
def test_each_way_between_all_ranks() -> None:
    size, rank = hvd.size(), hvd.rank()
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.bfloat16):
        for shape in ((), (3, 4), (0, 2), (100_001,)):

            def sent(src: int, dst: int) -> torch.Tensor:
                return torch.full(shape, src + 2 * dst).to(dtype)  # noqa: B023

            others = [other for other in range(size) if other != rank]
            sends = [hvd.send_async(sent(rank, other), other) for other in others]
            received = [hvd.recv(torch.zeros(shape, dtype=dtype), other) for other in others]
            for handle in sends:
                assert hvd.synchronize(handle) is None
            for other, tensor in zip(others, received, strict=True):
                assert torch.equal(tensor, sent(other, rank)), (other, dtype, shape)


@on_ranks(2)
def test_messages_keep_their_order_and_names_are_apart() -> None:
    if hvd.rank() == 0:
        handles = [hvd.send_async(torch.tensor([float(i)]), 1) for i in range(3)]
        handles.append(hvd.send_async(torch.tensor([7.0]), 1, name="loss"))
        for handle in handles:
            hvd.synchronize(handle)
        return
    assert hvd.recv(torch.zeros(1), 0, name="loss").item() == 7
    assert [hvd.recv(torch.zeros(1), 0).item() for _ in range(3)] == [0, 1, 2]


@on_ranks(3)
def test_a_pipeline_of_stages_equals_one_process() -> None:
    """Each rank has a layer; activations go forward, gradients back, all in one step's order."""
    size, rank = hvd.size(), hvd.rank()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 8) for _ in range(size)]
    batches = torch.randn(4, 5, 8)
    mine = layers[rank]
    for batch in batches:
        x = batch if rank == 0 else hvd.recv(torch.zeros(5, 8), rank - 1).requires_grad_()
        y = mine(x)
        if rank < size - 1:
            hvd.send(y.detach(), rank + 1)
            y.backward(hvd.recv(torch.zeros(5, 8), rank + 1))
        else:
            y.square().sum().backward()
        if rank > 0:
            hvd.send(x.grad, rank - 1)
    torch.manual_seed(0)
    whole = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(size)])
    for batch in batches:
        whole(batch).square().sum().backward()
    torch.testing.assert_close(mine.weight.grad, whole[rank].weight.grad)


@on_ranks(3)
def test_what_does_not_fit_is_told_to_both() -> None:
    rank = hvd.rank()
    if rank < 2:
        call = hvd.send if rank == 0 else hvd.recv
        with pytest.raises(MismatchError, match="'x' from rank 0 to rank 1: shapes differ"):
            call(torch.zeros(3 + rank), 1 - rank, name="x")
    for call in (hvd.send, hvd.recv):
        with pytest.raises(ValueError, match=r"(dst|src) 5 is not a rank; ranks are 0 to 2"):
            call(torch.zeros(1), 5)
        with pytest.raises(ValueError, match=f"rank {rank} is this rank itself"):
            call(torch.zeros(1), rank)
        with pytest.raises(ValueError, match="contiguous"):
            call(torch.zeros(4, 4).t(), (rank + 1) % 3)
    hvd.barrier()  # nothing of this hurt the job


@on_ranks(2)
def test_what_is_received_counts_as_written() -> None:
    """Is written where autograd sees it, also through a lazy view."""
    rank = hvd.rank()
    if rank == 0:
        for value in (torch.ones(3), torch.full((2,), 1 + 2j).conj(), torch.ones(2)):
            hvd.send(value, 1)
        return
    received = torch.zeros(3)
    version = received._version
    assert hvd.recv(received, 0) is received
    assert received._version > version
    lazy = torch.zeros(2, dtype=torch.complex64).conj()
    assert hvd.recv(lazy, 0) is lazy
    assert torch.equal(lazy, torch.full((2,), 1 - 2j))
    parameter = torch.nn.Parameter(torch.zeros(2))
    assert torch.equal(hvd.recv(parameter, 0), torch.ones(2))
