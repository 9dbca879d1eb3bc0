"""torch's DistributedDataParallel, over Gloo or, on GPUs, NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ciranda.compare.system import Processes, System

if TYPE_CHECKING:
    from ciranda.compare.job import Job


class Ddp(System):
    title = "torch DDP"
    processes = Processes("torch")
    ranks_min = 2

    def start(self, job: Job) -> None:
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        device = job.use_device(self._local_rank())
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.model = DistributedDataParallel(job.make_model(), gradient_as_bucket_view=True)
        self.model._set_ddp_runtime_logging_sample_rate(1)
        self.optimizer = job.make_optimizer(self.model)
        self._communicating_s = 0.0

    def step(self, images: Any, labels: Any) -> float:
        computed_s = super().step(images, labels)
        told = self.model._get_ddp_logging_data()  # of the last step, in nanoseconds
        beside = told.get("backward_compute_comm_overlap_time", 0)
        self._communicating_s += max(0, told.get("backward_comm_time", 0) - beside) / 1e9
        return computed_s

    def same(self, value: float) -> float:
        import torch

        told = torch.tensor(
            [value], dtype=torch.float64, device=next(self.model.parameters()).device
        )
        self._dist.broadcast(told, 0)
        return float(told)

    def report(self) -> dict[str, float]:
        return {"communicating_s": self._communicating_s}

    def stop(self) -> None:
        self._dist.destroy_process_group()

    def _local_rank(self) -> int:
        import os

        return int(os.environ["LOCAL_RANK"])


SYSTEM = Ddp()
