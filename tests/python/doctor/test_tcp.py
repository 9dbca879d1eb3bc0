"""The way between two hosts: only who shows the token is served, and what fails is told apart."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from ciranda.doctor import tcp
from ciranda.doctor.visit import distances
from ciranda.launch.remote.meeting import Ports

HERE = "127.0.0.1"


def test_a_call_measures_round_trip_and_bandwidth():
    token = tcp.draw_token()
    found = tcp.call(HERE, tcp.listen(HERE, Ports(), token), token)
    assert "end" not in found
    assert found["rtt_s"] > 0
    assert found["bytes_per_s"] > 0


def test_a_stranger_is_refused_and_the_caller_is_served_after_him():
    token = tcp.draw_token()
    port = tcp.listen(HERE, Ports(), token)
    with socket.create_connection((HERE, port), 5) as stranger:
        stranger.sendall(bytes(tcp.TOKEN_BYTES))
        assert stranger.recv(1) == b""
    assert tcp.call(HERE, port, tcp.draw_token())["end"] == tcp.CUT
    assert "end" not in tcp.call(HERE, port, token)


def test_slow_strangers_hold_nobody_up():
    """One sends a byte now and then, which is no reason to wait longer for him."""
    token = tcp.draw_token()
    port = tcp.listen(HERE, Ports(), token)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((HERE, port), 5)) for _ in range(3)]
        slow = silent[0]
        slow.sendall(b"x")
        assert "end" not in tcp.call(HERE, port, token)
    port = tcp.listen(HERE, Ports(), token)
    with socket.create_connection((HERE, port), 5) as slow:
        slow.settimeout(0.5)
        ended, began = False, time.monotonic()
        while not ended:
            assert time.monotonic() - began < 8, "the token has one deadline"
            with contextlib.suppress(TimeoutError):
                slow.sendall(b"x")
                ended = slow.recv(1) == b""


def test_a_listener_serves_one_caller_and_is_gone():
    token = tcp.draw_token()
    port = tcp.listen(HERE, Ports(), token)
    assert "end" not in tcp.call(HERE, port, token)
    deadline = time.monotonic() + 10
    while (end := tcp.call(HERE, port, token).get("end")) != tcp.REFUSED:
        assert time.monotonic() < deadline, end


def test_a_port_where_nobody_listens_is_refused():
    with socket.create_server((HERE, 0)) as server:
        port = server.getsockname()[1]
    assert tcp.call(HERE, port, tcp.draw_token())["end"] == tcp.REFUSED


@pytest.mark.parametrize("count", [2, 3, 9])
def test_few_hosts_call_all_others(count):
    assert distances(count) == list(range(1, count))


def test_among_many_hosts_rounds_grow_slowly():
    assert distances(64) == [1, 2, 4, 8, 16, 32]
    assert distances(1) == []
