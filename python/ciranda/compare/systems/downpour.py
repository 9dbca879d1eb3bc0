"""Downpour SGD with Adagrad (Dean et al., 2012): workers push and fetch after each 8 steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ciranda.compare.systems.ps_async import Served

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload

_STEPS = 8
_LR = 1e-2


class Downpour(Served):
    title = "parameter servers, Downpour SGD"

    def mode(self) -> Any:
        import ciranda.torch as cr

        return cr.ps.Downpour(n_push=_STEPS, n_fetch=_STEPS)

    def start(self, workload: Workload) -> None:
        workload.setting = workload.setting.but(optimizer="adagrad", lr=_LR)
        super().start(workload)


SYSTEM = Downpour()
