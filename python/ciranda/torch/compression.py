"""Formats in which tensors travel: their own, or a 16-bit format.

For its gradients DistributedOptimizer uses only `native` of these classes: they are rounded on
their way between hosts (csrc/core/backend/ring). With Gloo, and for the changes that Adasum
combines, it calls compress() and decompress().
"""

from __future__ import annotations

from typing import Any

import torch

from ciranda import _C


def native_of(compression: Any) -> Any:
    """Returns the compression that the C++ reducer does itself.

    Returns None if compress() and decompress() are to be called, also with Gloo, which cannot round
    messages.
    """
    native = getattr(compression, "native", None)
    rounds = native not in (None, _C.Compression.none)
    return None if rounds and _C.cpu_operations() != "native" else native


class Compressor:
    """The base class of your own compressors, as in Horovod."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor to reduce in place of `tensor`, and a context for decompress()."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the reduced tensor with the shape and dtype of compress()'s argument."""
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
    """Sends floating tensors as float16."""

    dtype = torch.float16
    native = _C.Compression.fp16


class BF16Compressor(_HalfCompressor):
    """Sends floating tensors as bfloat16."""

    dtype = torch.bfloat16
    native = _C.Compression.bf16


class Compression:
    """The choices for `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
