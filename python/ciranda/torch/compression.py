"""How tensors travel: as they are, or in a 16-bit format.

DistributedOptimizer takes only `native` of these classes: its gradients are rounded on their way
between hosts (csrc/core/backend/ring). With Gloo it calls compress() and decompress().
"""

from __future__ import annotations

from typing import Any

import torch

from ciranda import _C


def native_of(compression: Any) -> Any:
    """What of it the C++ reducer does itself; None: compress() and decompress() are called. Gloo
    cannot round what it sends."""
    native = getattr(compression, "native", None)
    rounds = native not in (None, _C.Compression.none)
    return None if rounds and _C.cpu_operations() != "native" else native


class Compressor:
    """The base of your own: how a tensor travels, and how it becomes one again. As Horovod's."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What is reduced in its place, and what decompress() needs to know."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The reduced tensor with the shape and dtype of the one that compress() got."""
        return tensor


class NoneCompressor(Compressor):
    """Leaves the tensor as it is."""

    native = _C.Compression.none


class _HalfCompressor(Compressor):
    dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(cls.dtype), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_HalfCompressor):
    """Floating tensors travel as float16."""

    dtype = torch.float16
    native = _C.Compression.fp16


class BF16Compressor(_HalfCompressor):
    """Floating tensors travel as bfloat16."""

    dtype = torch.bfloat16
    native = _C.Compression.bf16


class Compression:
    """The choices for `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
