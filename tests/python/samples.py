"""Tensors of ranks, and what a collective should make of them."""

from __future__ import annotations

import math

import torch

import ciranda.torch as hvd


def sample(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values 1 to 9 that differ by rank and position: their sums are exact in every dtype."""
    count = math.prod(shape)
    return ((torch.arange(count) * 5 + rank * 3) % 9 + 1).reshape(shape).to(dtype)


def samples(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [sample(rank, shape, dtype) for rank in range(hvd.size())]


def reduced(tensors: list[torch.Tensor], op: int) -> torch.Tensor:
    """The reduction in double precision, then in the tensors' dtype (toward zero)."""
    stack = torch.stack([tensor.double() for tensor in tensors])
    result = {
        hvd.Sum: lambda: stack.sum(0),
        hvd.Average: lambda: stack.sum(0) / len(tensors),
        hvd.Min: lambda: stack.amin(0),
        hvd.Max: lambda: stack.amax(0),
        hvd.Product: lambda: stack.prod(0),
    }[op]()
    return result.to(tensors[0].dtype)


def same(found: torch.Tensor, expected: torch.Tensor, what: object = "") -> None:
    """Equal in dtype, shape and every bit."""
    assert found.dtype == expected.dtype, (what, found.dtype, expected.dtype)
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    bits = [t.contiguous().reshape(-1).view(torch.uint8) for t in (found, expected)]
    assert torch.equal(*bits), (what, found, expected)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected)
