"""ciranda's parameter servers: one step uses the gradients of all workers."""

from __future__ import annotations

from typing import Any

from ciranda.compare.systems.ps_async import Served


class Sync(Served):
    title = "parameter servers, synchronous"

    def mode(self) -> Any:
        import ciranda.torch as cr

        return cr.ps.Sync()


SYSTEM = Sync()
