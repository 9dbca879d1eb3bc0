"""ciranda's collectives, on the backend that the launcher was given."""

from __future__ import annotations

import torch

import ciranda.torch as hvd
from ciranda.bench.case import Case
from ciranda.bench.library import Call, Library, Refused

_OPS = {"sum": hvd.Sum, "prod": hvd.Product, "min": hvd.Min, "max": hvd.Max, "avg": hvd.Average}


class Ciranda:
    def __init__(self) -> None:
        self.rank = hvd.rank()
        self.size = hvd.size()

    def call(self, case: Case, sent: torch.Tensor, received: torch.Tensor) -> Call:
        del received  # results are new tensors, except those of in-place collectives
        name = f"bench.{case.op}.{case.dtype}.{case.redop}.{case.count}"
        op = _OPS.get(case.redop)
        if case.op == "allreduce":
            return lambda: hvd.allreduce_(sent, name=name, op=op)
        if case.op == "broadcast":
            return lambda: hvd.broadcast_(sent, 0, name=name)
        if case.op == "allgather":
            return lambda: hvd.allgather(sent, name)
        if case.op == "alltoall":
            return lambda: hvd.alltoall(sent, name=name)
        if op not in (hvd.Sum, hvd.Average):
            raise Refused("reducescatter: sum and avg only")
        return lambda: hvd.reducescatter(sent, name=name, op=op)

    def close(self) -> None:
        hvd.shutdown()


def open_library(device: str) -> Library:
    hvd.init()
    if device == "cuda":
        torch.cuda.set_device(hvd.local_rank())
    return Ciranda()
