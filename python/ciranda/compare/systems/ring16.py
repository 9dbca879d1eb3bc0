"""ciranda's ring, with gradients in 16 bits between hosts."""

from __future__ import annotations

from ciranda.compare.system import Processes
from ciranda.compare.systems.shm import Ciranda


class Ring16(Ciranda):
    title = "ciranda, gradients in 16 bits"
    processes = Processes("ciranda", variables={"CIRANDA_WIRE_DTYPE": "bfloat16"})
    networks = ("hosts", "lan", "vpn")


SYSTEM = Ring16()
