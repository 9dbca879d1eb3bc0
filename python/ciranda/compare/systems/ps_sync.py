"""ciranda's parameter servers: one step uses the gradients of all workers."""

from __future__ import annotations

from typing import Any

from ciranda.compare.protocol import meet
from ciranda.compare.systems.ps_async import Served


class Sync(Served):
    title = "parameter servers, synchronous"
    _asked = 0  # calls of same()

    def mode(self) -> Any:
        import ciranda.torch as cr

        return cr.ps.Sync()

    def same(self, value: float) -> float:
        """Asks through the run's folder, for servers have no broadcast."""
        self._asked += 1
        return meet(self.rank, self.size, value, f"same-{self._asked}")


SYSTEM = Sync()
