"""Reductions of what no backend reduces by itself: bool, complex, int16, float8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends import over_backends_of_the_cpu
from rank_checks import on_ranks
from torch import nn

import ciranda.torch as hvd

pytestmark = over_backends_of_the_cpu


def every_rank(make: Any) -> list[torch.Tensor]:
    return [make(rank) for rank in range(hvd.size())]


def complex_of(rank: int, *shape: int, dtype: torch.dtype = torch.complex128) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(shape, generator=generator, dtype=torch.complex128).to(dtype)


@on_ranks(1, 2, 3)
def test_bools_are_any_and_all() -> None:
    def flags(rank: int) -> torch.Tensor:
        return torch.tensor([True, False, rank == 0, rank != 1])

    stack = torch.stack(every_rank(flags))
    for op, wanted in {
        hvd.Sum: stack.any(0),
        hvd.Max: stack.any(0),
        hvd.Min: stack.all(0),
        hvd.Product: stack.all(0),
    }.items():
        own = flags(hvd.rank())
        assert torch.equal(hvd.allreduce(own, op=op), wanted)
        assert hvd.allreduce_(own, op=op) is own
        assert torch.equal(own, wanted)
    counted = hvd.allreduce(torch.ones(1, dtype=torch.bool), op=hvd.Sum)
    assert counted.dtype is torch.bool and counted.item() is True


@on_ranks(1, 2, 3)
def test_complex_numbers_are_summed_and_averaged() -> None:
    for dtype in (torch.complex64, torch.complex128):
        for shape in [(), (3,), (2, 5), (0, 2), (40, 300)]:
            own = complex_of(hvd.rank(), *shape, dtype=dtype)
            total = sum(every_rank(lambda rank, s=shape, d=dtype: complex_of(rank, *s, dtype=d)))
            torch.testing.assert_close(hvd.allreduce(own, op=hvd.Sum), total)
            torch.testing.assert_close(hvd.allreduce(own), total / hvd.size())
            handle = hvd.allreduce_async_(own.conj(), op=hvd.Sum, prescale_factor=2.0)
            torch.testing.assert_close(hvd.synchronize(handle).resolve_conj(), 2 * total.conj())
    rows = complex_of(hvd.rank(), 2 * hvd.size(), 3)
    total = sum(every_rank(lambda rank: complex_of(rank, 2 * hvd.size(), 3)))
    begin = 2 * hvd.rank()
    torch.testing.assert_close(hvd.reducescatter(rows, op=hvd.Sum), total[begin : begin + 2])
    with pytest.raises(ValueError, match="complex tensors are summed or averaged"):
        hvd.allreduce(rows, op=hvd.Max)


@on_ranks(2, 3)
def test_groups_mix_dtypes_and_roots_alone_are_written() -> None:
    rank, size = hvd.rank(), hvd.size()
    group = [
        torch.tensor([rank], dtype=torch.int16),
        torch.tensor([float(rank)]),
        torch.tensor([1j * rank]),
        torch.tensor([rank == 1]),
        torch.tensor([0.5 * rank]).to(torch.float8_e4m3fn),
    ]
    total = size * (size - 1) // 2
    found = hvd.grouped_allreduce(group, op=hvd.Sum)
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in group]
    wanted = [total, total, 1j * total, True, 0.5 * total]
    assert [tensor.to(torch.complex64).item() for tensor in found] == wanted
    for own in group:
        before, version = own.clone(), own._version
        hvd.reduce_(own, root_rank=0, op=hvd.Sum)
        if rank != 0:
            assert torch.equal(own.view(torch.uint8), before.view(torch.uint8))
            assert own._version == version
    assert group[0].item() == (total if rank == 0 else rank)
    wide = torch.tensor([30_000], dtype=torch.int16)
    wrapped = (30_000 * size + 2**15) % 2**16 - 2**15
    assert hvd.allreduce(wide, op=hvd.Sum).item() == wrapped, "as int16 adds"


@on_ranks(2)
def test_gradients_of_complex_numbers_pass() -> None:
    own = complex_of(hvd.rank(), 4).requires_grad_()
    weights = complex_of(hvd.rank() + 5, 4)
    (hvd.allreduce(own, op=hvd.Sum) * weights).real.sum().backward()
    torch.testing.assert_close(own.grad, sum(complex_of(r + 5, 4).conj() for r in range(2)))


@on_ranks(2)
def test_a_model_with_complex_parameters_trains() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.phase = nn.Parameter(complex_of(3, 6))
            self.gain = nn.Parameter(torch.ones(6, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.phase * self.gain).abs().square().mean()

    model, alone = Model(), Model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.1), model.named_parameters()
    )
    plain = torch.optim.Adam(alone.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad(), plain.zero_grad()
        model(complex_of(10 * step + hvd.rank(), 5, 6)).backward()
        alone(torch.cat([complex_of(10 * step + rank, 5, 6) for rank in range(2)])).backward()
        optimizer.step(), plain.step()
    for found, wanted in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(found, wanted)
    assert "complex" in optimizer.why_not_shared()


@on_ranks(2)
def test_ranks_that_disagree_about_bytes_of_the_same_size_are_told() -> None:
    """What is only moved goes as some dtype of its size."""
    pairs = {
        ("bool", "uint8"),
        ("int16", "float16"),
        ("uint16", "int16"),
        ("uint32", "int32"),
        ("complex64", "int64"),
        ("float8_e5m2", "float8_e4m3fn"),
    }
    for pair in sorted(pairs):
        own = torch.zeros(3, dtype=getattr(torch, pair[hvd.rank()]))
        says = rf"rank 0 has {pair[0]} \[3\], rank 1 has {pair[1]} \[3\]"
        with pytest.raises(hvd.HorovodInternalError, match=says):
            hvd.broadcast(own, 0)
        says = rf"rank 0 has {pair[0]} \[\*\], rank 1 has {pair[1]} \[\*\]"
        with pytest.raises(hvd.HorovodInternalError, match=says):
            hvd.allgather(own)
