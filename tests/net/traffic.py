"""Measures the way between two hosts: round trips by UDP, throughput by TCP.

`python traffic.py …` is what runs inside the hosts.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ciranda.netns.network import Host

_PORT = 7
_ANSWER_S = 0.2
_READ_BYTES = 1 << 16


def round_trips_ms(a: Host, b: Host, count: int = 20, *, nic: int = 0) -> list[float | None]:
    """Times of `count` small packets from a to b and back; None for one that is lost."""
    address = b.address(nic=nic)
    with _server(b, "echo", address):
        words = _traffic(a, "ping", address, str(count)).split()
    return [None if word == "lost" else float(word) for word in words]


def tcp_mbit(a: Host, b: Host, seconds: float) -> float:
    """Payload per second that b receives from a, from the first byte on to the last."""
    with _server(b, "sink", b.address()) as server:
        _traffic(a, "source", b.address(), str(seconds))
        assert server.stdout is not None
        return float(server.stdout.readline())


def _traffic(host: Host, *arguments: str) -> str:
    return host.check([sys.executable, __file__, *arguments])


@contextmanager
def _server(host: Host, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, __file__, *arguments]
    with host.popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            yield process
        finally:
            process.kill()


# --- inside a host -----------------------------------------------------------------------------


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def echo(address: str) -> None:
    with socket.socket(_family(address), socket.SOCK_DGRAM) as here:
        here.bind((address, _PORT))
        print("listening", flush=True)
        while True:
            packet, sender = here.recvfrom(_READ_BYTES)
            here.sendto(packet, sender)


def ping(address: str, count: str) -> None:
    with socket.socket(_family(address), socket.SOCK_DGRAM) as here:
        here.connect((address, _PORT))
        here.settimeout(_ANSWER_S)
        for number in range(int(count)):
            began = time.monotonic()
            here.send(str(number).encode())
            try:
                while here.recv(_READ_BYTES) != str(number).encode():
                    pass  # an answer that came too late
                print((time.monotonic() - began) * 1e3)
            except (TimeoutError, ConnectionRefusedError):
                print("lost")


def sink(address: str) -> None:
    with socket.create_server((address, _PORT), family=_family(address)) as listener:
        print("listening", flush=True)
        connection, _ = listener.accept()
    connection.recv(_READ_BYTES)
    began = ended = time.monotonic()
    received = 0
    while piece := connection.recv(_READ_BYTES):
        received += len(piece)
        ended = time.monotonic()
    print(received * 8e-6 / (ended - began), flush=True)


def source(address: str, seconds: str) -> None:
    with socket.create_connection((address, _PORT)) as connection:
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            connection.send(bytes(_READ_BYTES))


_VERBS: dict[str, Callable[..., None]] = {
    "echo": echo,
    "ping": ping,
    "sink": sink,
    "source": source,
}

if __name__ == "__main__":
    _VERBS[sys.argv[1]](*sys.argv[2:])
