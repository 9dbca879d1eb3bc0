"""ciranda's ring over TCP between hosts; on one machine the hosts are namespaces."""

from __future__ import annotations

from ciranda.compare.system import Processes
from ciranda.compare.systems.shm import Ciranda


class Ring(Ciranda):
    title = "ciranda, ring"
    processes = Processes("ciranda", variables={"CIRANDA_CPU_OPERATIONS": "ring"})
    networks = ("hosts", "lan", "vpn")


SYSTEM = Ring()
