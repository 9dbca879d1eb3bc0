"""The rules of a cable, without a network: when a packet arrives, and which never does."""

from __future__ import annotations

import ipaddress

from ciranda.netns.link import Fabric, Link

BYTES = 1000
A, B, C = (ipaddress.ip_address(f"10.77.1.{last}").packed for last in (1, 2, 3))


def packet(target: bytes, size: int = BYTES) -> bytes:
    return bytes([0x45]) + bytes(15) + target + bytes(size - 20)


def fabric(link: Link, seed: int = 0) -> Fabric:
    made = Fabric({A: 0, B: 1, C: 2}, seed)
    for cable in made.cables.values():
        cable.change(link)
    return made


def arrivals_ms(made: Fabric) -> list[tuple[float, int]]:
    """(when, port) of everything that is under way."""
    found = []
    while (at := made.next_at()) is not None:
        found += [(round(at * 1e3, 6), port) for port, _ in made.due(at)]
    return found


def test_a_perfect_cable_takes_no_time():
    made = fabric(Link())
    made.send(1.0, 0, packet(B))
    assert arrivals_ms(made) == [(1000, 1)]


def test_a_delay_is_added_to_what_the_host_sends():
    made = fabric(Link())
    made.cables[0].change(Link(delay_ms=30))
    made.send(0, 0, packet(B))
    made.send(0, 1, packet(A))
    assert arrivals_ms(made) == [(0, 0), (30, 1)]


def test_a_rate_spaces_packets_in_both_directions():
    made = fabric(Link(rate_mbit=8))  # 1000 bytes take 1 ms
    for _ in range(3):
        made.send(0, 0, packet(B))
    assert arrivals_ms(made) == [(2, 1), (3, 1), (4, 1)]


def test_two_senders_share_the_rate_of_one_receiver():
    made = fabric(Link(rate_mbit=8))
    for _ in range(2):
        made.send(0, 0, packet(C))
        made.send(0, 1, packet(C))
    assert arrivals_ms(made) == [(2, 2), (3, 2), (4, 2), (5, 2)]


def test_a_full_queue_drops():
    made = fabric(Link(rate_mbit=8, queue_kib=10))
    for _ in range(20):
        made.send(0, 0, packet(B))
    assert len(arrivals_ms(made)) == 11  # 10 KiB wait, and one packet is on the wire


def test_losses_repeat_with_the_seed():
    def survivors(seed: int) -> list[bool]:
        made = fabric(Link(loss=0.1), seed)
        alive = []
        for _ in range(2000):
            made.send(0, 0, packet(B))
            alive.append(bool(arrivals_ms(made)))
        return alive

    assert survivors(1) == survivors(1) != survivors(2)
    assert 150 < survivors(1).count(False) < 250


def test_an_unplugged_cable_loses_what_is_under_way_too():
    made = fabric(Link(delay_ms=10))
    made.send(0, 0, packet(B))
    made.cables[1].plugged = False
    assert arrivals_ms(made) == []
    made.send(0, 1, packet(A))
    made.cables[1].plugged = True
    made.send(0, 0, packet(B))
    assert arrivals_ms(made) == [(10, 1)]


def test_packets_to_nobody_here_are_dropped():
    made = fabric(Link())
    made.send(0, 0, packet(ipaddress.ip_address("8.8.8.8").packed))
    made.send(0, 0, bytes([0x60]) + bytes(39))  # IPv6, to ::
    assert arrivals_ms(made) == []
