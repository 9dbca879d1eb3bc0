"""mpi4py, with the MPI that it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from mpi4py import MPI

from ciranda.bench.case import REDUCING, Case
from ciranda.bench.library import Call, Library, Refused

_OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}
_TYPES = {
    "float32": MPI.FLOAT,
    "float64": MPI.DOUBLE,
    "int8": MPI.INT8_T,
    "uint8": MPI.UINT8_T,
    "int32": MPI.INT32_T,
    "int64": MPI.INT64_T,
}


class Mpi:
    def __init__(self) -> None:
        self._world = MPI.COMM_WORLD
        self.rank = self._world.rank
        self.size = self._world.size

    def call(self, case: Case, sent: torch.Tensor, received: torch.Tensor) -> Call:
        if case.op in REDUCING and case.dtype not in _TYPES:
            raise Refused(f"MPI does not reduce {case.dtype}")
        if case.op in REDUCING and case.redop not in _OPS:
            raise Refused("MPI has no average")
        run = self._runner(case, _buffer(sent, case), _buffer(received, case))

        def call() -> torch.Tensor:
            run()
            return received

        return call

    def _runner(self, case: Case, sent: Any, received: Any) -> Callable[[], None]:
        world = self._world
        op = _OPS.get(case.redop, MPI.SUM)
        if case.op == "allreduce":
            return lambda: world.Allreduce(MPI.IN_PLACE, sent, op)
        if case.op == "broadcast":
            return lambda: world.Bcast(sent, 0)
        if case.op == "allgather":
            return lambda: world.Allgather(sent, received)
        if case.op == "alltoall":
            return lambda: world.Alltoall(sent, received)
        return lambda: world.Reduce_scatter_block(sent, received, op)

    def close(self) -> None:
        pass  # mpi4py finalizes at exit


def _buffer(tensor: torch.Tensor, case: Case) -> Any:
    """Returns memory, count and type, so that mpi4py need not query the tensor in each call."""
    if case.dtype in _TYPES:
        return [MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes), _TYPES[case.dtype]]
    # Dtypes without an MPI type are only moved.
    return [MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes), MPI.BYTE]


def open_library(device: str) -> Library:
    del device  # always the CPU; this peer is not offered for GPUs
    return Mpi()
