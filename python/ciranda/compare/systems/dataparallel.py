"""torch's DataParallel: one process, a thread for each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciranda.compare.system import Processes, System, no_gpu

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload


class DataParallel(System):
    title = "torch DataParallel"
    processes = Processes("python")
    ranks_min = 2
    networks = ("host",)

    def missing(self) -> str | None:
        return no_gpu(2)

    def start(self, workload: Workload) -> None:
        import torch

        workload.use_device(0)
        super().start(workload)
        self.model = torch.nn.DataParallel(self.model, list(range(workload.setting.ranks)))


SYSTEM = DataParallel()
