"""Joins hosts by the kernel's bridge, which is fast and perfect, with an optional rate limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ciranda.netns.link import Link
from ciranda.netns.namespace import Namespace

_QUEUE_MS = 50
_BURST_MS = 2  # of data that may pass at once; a smaller burst would need a finer clock than tbf's


class Bridge:
    """A separate machine with a bridge for each LAN."""

    def __init__(self, folder: Path) -> None:
        self._switch = Namespace("switch", folder, {})
        self._lans: set[int] = set()
        self._ports: list[tuple[Namespace, str, int]] = []

    def attach(self, host: Namespace, device: str, lan: int, addresses: Sequence[str]) -> int:
        """Makes a device in a host; returns its port."""
        port = len(self._ports)
        self._ports.append((host, device, lan))
        lines = []
        if lan not in self._lans:
            self._lans.add(lan)
            # Neighbour discovery uses multicast; without snooping it passes although no host has
            # joined.
            lines += [f"link add lan{lan} type bridge forward_delay 0 mcast_snooping 0"]
            lines += [f"link set lan{lan} up"]
        lines += [f"link add port{port} type veth peer name {device} netns {host.pid}"]
        self._switch.ip(*lines, f"link set port{port} master lan{lan} up")
        return port

    def start(self) -> None:
        """Does nothing: packets pass from attach() on."""

    def set_link(self, port: int, link: Link) -> None:
        """Limits the rate; raises ValueError for a delay or loss.

        tbf also counts 14 bytes of Ethernet for each packet.
        """
        if link.delay_ms or link.loss:
            raise ValueError("only a network with router=True has delays and losses")
        host, device, _ = self._ports[port]
        for machine, name in ((host, device), (self._switch, f"port{port}")):
            if link.rate_mbit is None:
                machine.in_network("tc", "qdisc", "delete", "dev", name, "root", may_fail=True)
                continue
            burst_bytes = max(16_384, int(link.rate_mbit * 1e6 / 8 * _BURST_MS / 1e3))
            tbf = f"tbf rate {link.rate_mbit}mbit burst {burst_bytes} latency {_QUEUE_MS}ms"
            machine.in_network("tc", "qdisc", "replace", "dev", name, "root", *tbf.split())

    def set_plugged(self, port: int, plugged: bool) -> None:
        """Plugs or unplugs a cable. Unplugged, it loses all packets; its host does not notice."""
        lan = self._ports[port][2]
        self._switch.ip(f"link set port{port} {f'master lan{lan}' if plugged else 'nomaster'}")

    def close(self) -> None:
        self._switch.crash()
