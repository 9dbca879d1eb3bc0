"""A rank of the doctor's all-reduce, which is verified, then timed along with a plain copy.

Prints one line of JSON. By hand: ciranda run -np 2 -m ciranda.doctor.worker
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

import ciranda.torch as cr
from ciranda.doctor.job import LARGE_BYTES

_SMALL_TRIES = 200
_LARGE_TRIES = 5
_WARM_UP = 10
_FACTORS = 7
_PATTERN = 251  # a prime, so that no chunk begins like another


def main() -> None:
    large_bytes = int(sys.argv[1]) if len(sys.argv) > 1 else LARGE_BYTES
    cr.init()
    small, large = torch.ones(1), torch.empty(large_bytes // 4)
    copy = torch.empty_like(large)
    found = {
        "rank": cr.rank(),
        "verified": verify(small) and verify(large),
        "latency_s": _median(lambda: _sum(small), _SMALL_TRIES, _WARM_UP),
        "large_bytes": large.nbytes,
        "allreduce_s": _median(lambda: _sum(large), _LARGE_TRIES),
        # All ranks copy at once, because they share the memory's bandwidth in an all-reduce too.
        "copy_s": _median(lambda: copy.copy_(large), _LARGE_TRIES),
    }
    print(json.dumps(found), flush=True)
    cr.shutdown()


def verify(tensor: torch.Tensor) -> bool:
    """Returns true if the sum over all ranks is right to the bit.

    The sums are whole numbers below 2^24, which float32 holds exactly.
    """
    factors = [rank % _FACTORS + 1 for rank in range(cr.size())]
    pattern = torch.arange(tensor.numel(), dtype=torch.float32).remainder_(_PATTERN).add_(1)
    tensor.copy_(pattern).mul_(factors[cr.rank()])
    cr.allreduce_(tensor, op=cr.Sum)
    return torch.equal(tensor, pattern.mul_(sum(factors)))


def _sum(tensor: torch.Tensor) -> None:
    cr.allreduce_(tensor, op=cr.Average)  # keeps the values


def _median(do: Callable[[], object], tries: int, warm_up: int = 1) -> float:
    for _ in range(warm_up):
        do()
    cr.barrier()
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        do()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
