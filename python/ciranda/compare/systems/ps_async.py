"""ciranda's parameter servers: each worker's gradient makes its own step at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ciranda.compare.system import Processes, System

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload


class Served(System):
    title = "parameter servers, asynchronous"
    processes = Processes("ciranda", servers=True)

    def mode(self) -> Any:
        import ciranda.torch as cr

        return cr.ps.Async()

    def start(self, workload: Workload) -> None:
        import ciranda.torch as cr

        self._cr = cr
        cr.init()
        self.rank, self.size = cr.rank(), cr.size()
        super().start(workload)
        self.optimizer = cr.DistributedOptimizer(
            self.optimizer, self.model.named_parameters(), ps=self.mode()
        )

    def report(self) -> dict[str, float]:
        worker = self._cr.ps.stats()["worker"]
        others_s = float(worker["waiting_for_workers_s"])
        return {"waiting_s": others_s, "communicating_s": float(worker["waiting_s"]) - others_s}

    def stop(self) -> None:
        self._cr.shutdown()


SYSTEM = Served()
