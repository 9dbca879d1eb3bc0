"""ciranda on Gloo."""

from __future__ import annotations

from ciranda.compare.system import Processes
from ciranda.compare.systems.shm import Ciranda


class Gloo(Ciranda):
    title = "ciranda, gloo"
    processes = Processes(
        "ciranda", variables={"CIRANDA_CPU_OPERATIONS": "gloo", "CIRANDA_TRUSTED_NETWORK": "1"}
    )


SYSTEM = Gloo()
