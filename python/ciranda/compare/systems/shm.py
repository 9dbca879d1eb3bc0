"""ciranda with its defaults: shared memory within a host, its ring between hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciranda.compare.system import Processes, System

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload


class Ciranda(System):
    title = "ciranda"
    processes = Processes("ciranda")
    ranks_min = 2

    def start(self, workload: Workload) -> None:
        import ciranda.torch as cr

        self._cr = cr
        cr.init()
        workload.use_device(cr.local_rank())
        self.rank, self.size = cr.rank(), cr.size()
        super().start(workload)
        cr.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.optimizer = cr.DistributedOptimizer(self.optimizer, self.model.named_parameters())

    def same(self, value: float) -> float:
        return float(self._cr.broadcast_object(value, root_rank=0))

    def report(self) -> dict[str, float]:
        stats = self._cr.stats()
        return {name: stats[name] for name in ("waiting_s", "communicating_s")}

    def stop(self) -> None:
        self._cr.shutdown()


SYSTEM = Ciranda()
