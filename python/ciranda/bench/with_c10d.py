"""torch.distributed over Gloo, or on GPUs over NCCL."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist

from ciranda.bench.case import REDUCING, Case
from ciranda.bench.library import Call, Library, Refused
from ciranda.measure import torch_store

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}


class C10d:
    def __init__(self, backend: str) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._backend = backend

    def call(self, case: Case, sent: torch.Tensor, received: torch.Tensor) -> Call:
        if case.op in REDUCING and case.redop == "avg" and self._backend == "gloo":
            raise Refused("c10d's Gloo has no average")
        run = self._runner(case, sent, received)

        def call() -> torch.Tensor:
            run()
            return received

        return call

    def _runner(
        self, case: Case, sent: torch.Tensor, received: torch.Tensor
    ) -> Callable[[], object]:
        op = _OPS.get(case.redop, dist.ReduceOp.SUM)
        if case.op == "allreduce":
            return lambda: dist.all_reduce(sent, op)
        if case.op == "broadcast":
            return lambda: dist.broadcast(sent, 0)
        if case.op == "allgather":
            return lambda: dist.all_gather_into_tensor(received, sent)
        if case.op == "alltoall":
            return lambda: dist.all_to_all_single(received, sent)
        return lambda: dist.reduce_scatter_tensor(received, sent, op)

    def close(self) -> None:
        dist.destroy_process_group()


def open_library(device: str) -> Library:
    backend = "gloo"
    if device == "cuda":
        backend = "nccl"
        torch.cuda.set_device(int(os.environ["RANK"]))
    torch_store.join(backend)
    return C10d(backend)
