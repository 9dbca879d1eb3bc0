"""Data parallelism by hand, as tutorials do it.

After backward() a loop over the parameters averages each gradient with torch.distributed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ciranda.compare.system import Processes, System
from ciranda.measure import torch_store

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload


class Averaging(System):
    title = "averaging by hand (Gloo)"
    processes = Processes("torch")
    ranks_min = 2

    def start(self, workload: Workload) -> None:
        import torch.distributed as dist

        torch_store.join("gloo")
        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        super().start(workload)
        self._communicating_s = 0.0

    def step(self, images: Any, labels: Any) -> float:
        from ciranda.compare.workload import compute_gradients

        computed_s = compute_gradients(self.model, self.optimizer, images, labels)
        begin = time.perf_counter()
        for parameter in self.model.parameters():
            self._dist.all_reduce(parameter.grad)
            parameter.grad /= self.size
        self._communicating_s += time.perf_counter() - begin
        self.optimizer.step()
        return computed_s

    def same(self, value: float) -> float:
        import torch

        told = torch.tensor([value], dtype=torch.float64)
        self._dist.broadcast(told, 0)
        return float(told)

    def report(self) -> dict[str, float]:
        return {"communicating_s": self._communicating_s}

    def stop(self) -> None:
        self._dist.destroy_process_group()


SYSTEM = Averaging()
