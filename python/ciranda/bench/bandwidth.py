"""Algorithm and bus bandwidth: nccl-tests' figures, by nccl-tests' formulas. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

# Factors of algbw for n ranks: how many times a byte of the result crosses the slowest link. The
# "Summary" of https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md derives them.
BUS_FACTORS: Mapping[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
}


def algbw_gbs(size: int, us: float) -> float:
    """Returns S / t in 10^9 bytes a second.

    `size` is the bytes of the larger of a rank's two buffers.
    """
    return size / us / 1e3


def busbw_gbs(op: str, ranks: int, size: int, us: float) -> float:
    """Returns algbw times a factor; comparable with the peak of the hardware for any `ranks`."""
    return algbw_gbs(size, us) * BUS_FACTORS[op](ranks)
