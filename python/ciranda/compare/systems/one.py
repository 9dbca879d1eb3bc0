"""One process: the reference for all other systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ciranda.compare.system import System

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload


class One(System):
    ranks_max = 1
    networks = ("host",)

    def start(self, workload: Workload) -> None:
        workload.use_device(0)
        super().start(workload)


SYSTEM = One()
