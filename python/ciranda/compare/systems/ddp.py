"""torch's DistributedDataParallel, over Gloo or, on GPUs, NCCL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ciranda.compare.system import Processes, System
from ciranda.measure import torch_store

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload

_SAMPLED = 10  # DDP times the first steps, then one step in ten


class Ddp(System):
    title = "torch DDP"
    processes = Processes("torch")
    ranks_min = 2

    def start(self, workload: Workload) -> None:
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        self._device = workload.use_device(int(os.environ["LOCAL_RANK"]))
        torch_store.join("nccl" if self._device.type == "cuda" else "gloo")
        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.model = DistributedDataParallel(workload.make_model(), gradient_as_bucket_view=True)
        self.model._set_ddp_runtime_logging_sample_rate(_SAMPLED)
        self.optimizer = workload.make_optimizer(self.model)
        self._steps, self._a_step_s, self._communicating_s = 0, 0.0, 0.0

    def step(self, images: Any, labels: Any) -> float:
        computed_s = super().step(images, labels)
        self._steps += 1
        if self._steps in (1, 2, 5) or self._steps % _SAMPLED == 0:  # asking costs 50 us
            self.model.logger.set_runtime_stats_and_log()  # otherwise it logs after a forward
            told = self.model._get_ddp_logging_data()  # of the last step, in nanoseconds
            hidden = told.get("backward_compute_comm_overlap_time", 0)
            self._a_step_s = max(0, told.get("backward_comm_time", 0) - hidden) / 1e9
        self._communicating_s += self._a_step_s
        return computed_s

    def same(self, value: float) -> float:
        import torch

        told = torch.tensor([value], dtype=torch.float64, device=self._device)
        self._dist.broadcast(told, 0)
        return float(told)

    def report(self) -> dict[str, float]:
        return {"communicating_s": self._communicating_s}

    def stop(self) -> None:
        self._dist.destroy_process_group()


SYSTEM = Ddp()
