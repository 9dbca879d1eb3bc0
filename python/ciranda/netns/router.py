"""Joins hosts by cables that delay, lose and limit: a process between TUN devices.

Kernels without netem cannot do that. `python -m ciranda.netns.router` is the process; `Router`
starts it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import ipaddress
import json
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from ciranda.netns.link import Fabric, Link
from ciranda.netns.namespace import Namespace

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET_BYTES_MAX = 2048  # more than the MTU of 1500
_BATCH = 16  # packets read from one device before other devices and due packets have their turn


@dataclass(frozen=True)
class Port:
    """A network device of a host, and its addresses."""

    host_pid: int
    device: str
    addresses: tuple[str, ...]


class Router:
    """Runs the router process, and sends it the changes of cables."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._ports: list[Port] = []
        self._process: subprocess.Popen[str] | None = None

    def attach(self, host: Namespace, device: str, lan: int, addresses: Sequence[str]) -> int:
        """Registers a device, which start() makes; returns its port. Addresses tell LANs apart."""
        self._ports.append(Port(host.pid, device, tuple(addresses)))
        return len(self._ports) - 1

    def start(self) -> None:
        """Makes the devices and starts to forward packets."""
        plan = {"seed": self._seed, "ports": [asdict(port) for port in self._ports]}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ciranda.netns.router"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # keeps Ctrl-C for us
        )
        self._tell(plan)

    def set_link(self, port: int, link: Link) -> None:
        """Changes a cable; the change is in effect when the call returns."""
        self._tell({"port": port, "link": asdict(link)})

    def set_plugged(self, port: int, plugged: bool) -> None:
        """Plugs or unplugs a cable. Unplugged, it loses all packets; its host does not notice."""
        self._tell({"port": port, "plugged": plugged})

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()  # closing its input ends it

    def _tell(self, message: object) -> None:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise OSError("the router is not started")
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        if process.stdout.readline() != "done\n":
            raise OSError(f"the router ended with {process.wait()}")


# --- the process -------------------------------------------------------------------------------


def _open_devices(ports: Iterable[Port]) -> list[int]:
    """Opens the devices; each belongs to the network in which /dev/net/tun was opened."""
    libc = ctypes.CDLL(None, use_errno=True)
    devices = []
    for port in ports:
        with open(f"/proc/{port.host_pid}/ns/net", "rb") as network:
            if libc.setns(network.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), f"cannot enter the network of {port.host_pid}")
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        request = struct.pack("16sH22x", port.device.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(device, _TUNSETIFF, request)
        devices.append(device)
    return devices


def _obey(fabric: Fabric, line: str) -> None:
    message = json.loads(line)
    cable = fabric.cables[message["port"]]
    if "link" in message:
        cable.change(Link(**message["link"]))
    if "plugged" in message:
        cable.plugged = message["plugged"]


def _forward(fabric: Fabric, devices: Sequence[int]) -> None:
    """Forwards packets and obeys messages until standard input ends."""
    port_of = {device: port for port, device in enumerate(devices)}
    while True:
        at = fabric.next_at()
        wait_s = None if at is None else max(0.0, at - time.monotonic())
        ready, _, _ = select.select([0, *devices], [], [], wait_s)
        for each in ready:
            if each == 0:
                line = sys.stdin.readline()
                if not line:
                    return
                _obey(fabric, line)
                print("done", flush=True)
                continue
            with contextlib.suppress(BlockingIOError, OSError):  # EIO: the device is down
                for _ in range(_BATCH):
                    fabric.send(time.monotonic(), port_of[each], os.read(each, _PACKET_BYTES_MAX))
        for port, packet in fabric.due(time.monotonic()):
            with contextlib.suppress(OSError):  # the host is gone, or the device is down or full
                os.write(devices[port], packet)


def main() -> None:
    # The router has priority over measured processes, because a network does not wait for a core.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    plan = json.loads(sys.stdin.readline())
    ports = [Port(**port) for port in plan["ports"]]
    devices = _open_devices(ports)
    addresses = {
        ipaddress.ip_address(address).packed: number
        for number, port in enumerate(ports)
        for address in port.addresses
    }
    fabric = Fabric(addresses, plan["seed"])
    print("done", flush=True)
    _forward(fabric, devices)


if __name__ == "__main__":
    main()
