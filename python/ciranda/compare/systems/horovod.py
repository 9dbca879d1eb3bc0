"""Horovod itself, if it is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciranda.compare.system import Processes, System, no_module

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload


class Horovod(System):
    title = "Horovod"
    processes = Processes("horovod")
    ranks_min = 2
    networks = ("host",)

    def missing(self) -> str | None:
        return no_module("horovod", "it does not build against this torch; see its installation")

    def start(self, workload: Workload) -> None:
        import horovod.torch as hvd

        self._hvd = hvd
        hvd.init()
        workload.use_device(hvd.local_rank())
        self.rank, self.size = hvd.rank(), hvd.size()
        super().start(workload)
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer, named_parameters=self.model.named_parameters()
        )

    def same(self, value: float) -> float:
        return float(self._hvd.broadcast_object(value, root_rank=0))

    def stop(self) -> None:
        self._hvd.shutdown()


SYSTEM = Horovod()
