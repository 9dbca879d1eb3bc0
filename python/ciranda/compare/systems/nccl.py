"""ciranda on NCCL: a GPU for each rank."""

from __future__ import annotations

from ciranda.compare.system import Processes, no_gpu
from ciranda.compare.systems.shm import Ciranda


class Nccl(Ciranda):
    title = "ciranda, NCCL"
    processes = Processes("ciranda", variables={"CIRANDA_GPU_OPERATIONS": "nccl"})

    def missing(self) -> str | None:
        return no_gpu(2)


SYSTEM = Nccl()
