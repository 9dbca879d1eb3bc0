"""The effect of a cable on packets. Pure: the caller passes in the time and gets the packets."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

IPV4_DESTINATION = slice(16, 20)
IPV6_DESTINATION = slice(24, 40)


@dataclass(frozen=True)
class Link:
    """The cable between a host and the network; by default a perfect one."""

    delay_ms: float = 0.0  # one way, from the host; a round trip of two such hosts takes twice that
    rate_mbit: float | None = None  # in each direction, counted in bytes of IP; None: unlimited
    loss: float = 0.0  # fraction of the packets from the host that vanish
    queue_kib: int = 256  # waiting for the rate; a packet that finds the queue full is dropped


class Pipe:
    """One direction of a cable: a queue before a rate limit."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._free_at = 0.0

    def passed_at(self, now: float, size: int) -> float | None:
        """Returns when the last byte has passed; None if the queue is full. `size` is in bytes."""
        rate = self.link.rate_mbit
        if rate is None:
            return now
        byte_s = 8e-6 / rate
        begin = max(now, self._free_at)
        if begin - now > self.link.queue_kib * 1024 * byte_s:
            return None
        self._free_at = begin + size * byte_s
        return self._free_at


class Cable:
    """Both directions of one host's link."""

    def __init__(self, seed: str) -> None:
        self.plugged = True
        self._random = random.Random(seed)  # noqa: S311 - which packets are lost
        self.change(Link())

    def change(self, link: Link) -> None:
        """Changes the link for packets to come; packets in flight are not lost."""
        self.link = link
        self.up, self.down = Pipe(link), Pipe(link)

    def loses(self) -> bool:
        """Returns true if the next packet is lost; reproducible by seed and order of packets."""
        return self.link.loss > 0 and self._random.random() < self.link.loss


class Fabric:
    """Cables that meet in one router, which has no limits."""

    def __init__(self, ports: Mapping[bytes, int], seed: int) -> None:
        """`ports` maps packed addresses, IPv4 or IPv6, to the number of their cable."""
        self._ports = ports
        self.cables = {port: Cable(f"{seed}/{port}") for port in sorted(set(ports.values()))}
        # (when, order of arrival, port, has passed the port's rate, packet)
        self._under_way: list[tuple[float, int, int, bool, bytes]] = []
        self._count = 0

    def send(self, now: float, source: int, packet: bytes) -> None:
        """Sends a host's packet into its cable; drops it unless it is for one host here."""
        where = IPV4_DESTINATION if packet[0] >> 4 == 4 else IPV6_DESTINATION
        target = self._ports.get(packet[where])
        cable = self.cables[source]
        if target is None or not cable.plugged or cable.loses():
            return
        passed = cable.up.passed_at(now, len(packet))
        if passed is not None:
            self._push(passed + cable.link.delay_ms / 1e3, target, False, packet)

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """Yields (port, packet) for all packets that have arrived by now, in order."""
        while self._under_way and self._under_way[0][0] <= now:
            when, _, port, passed, packet = heapq.heappop(self._under_way)
            cable = self.cables[port]
            if not cable.plugged:
                continue
            if passed or cable.link.rate_mbit is None:
                yield port, packet
                continue
            arrived = cable.down.passed_at(when, len(packet))
            if arrived is not None:
                self._push(arrived, port, True, packet)

    def next_at(self) -> float | None:
        """Returns when the next packet is due; None while no packet is in flight."""
        return self._under_way[0][0] if self._under_way else None

    def _push(self, when: float, port: int, passed: bool, packet: bytes) -> None:
        self._count += 1
        heapq.heappush(self._under_way, (when, self._count, port, passed, packet))
