"""mpirun and mpi4py: after backward() one message averages all gradients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ciranda.compare.system import Processes, System, no_module, no_program

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload


class Mpi(System):
    title = "mpirun, mpi4py"
    processes = Processes("mpirun")
    ranks_min = 2
    networks = ("host",)

    def missing(self) -> str | None:
        return no_program("mpirun", "apt install openmpi-bin") or no_module(
            "mpi4py", "pip install mpi4py"
        )

    def start(self, workload: Workload) -> None:
        from mpi4py import MPI

        self._world, self._mpi = MPI.COMM_WORLD, MPI
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        super().start(workload)
        self._communicating_s = 0.0

    def step(self, images: Any, labels: Any) -> float:
        import torch

        from ciranda.compare.workload import compute_gradients

        computed_s = compute_gradients(self.model, self.optimizer, images, labels)
        begin = time.perf_counter()
        gradients = [p.grad for p in self.model.parameters()]
        flat = torch.cat([g.flatten() for g in gradients])
        self._world.Allreduce(self._mpi.IN_PLACE, flat.numpy())
        flat /= self.size
        for gradient, part in zip(
            gradients, flat.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(part.view_as(gradient))
        self._communicating_s += time.perf_counter() - begin
        self.optimizer.step()
        return computed_s

    def same(self, value: float) -> float:
        return float(self._world.bcast(value))

    def report(self) -> dict[str, float]:
        return {"communicating_s": self._communicating_s}


SYSTEM = Mpi()
