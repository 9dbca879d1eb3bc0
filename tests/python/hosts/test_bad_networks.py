"""Networks that are slow, lossy or cut: breaks when training differs from one process, when a lost
host is noticed late or is not named, or when a stopped rank counts as lost."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host_ranks import Process, Start, outputs, wait_for
from ranks import OnHost

from ciranda.netns.link import Link

HERE = Path(__file__).parent
LOST_S = 5.0  # promised: by then every rank has failed

MakeNetwork = Callable[..., Any]


def assert_trained(processes: list[OnHost]) -> None:
    for text in outputs(processes):
        result = json.loads(text.splitlines()[-1])
        assert result["off"] < 1e-6 and result["equal"]


def program_of(process: Process) -> int:
    """The pid, outside, of the program behind the process that stands in for it."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def test_an_unplugged_host_is_named_on_every_host(make_network: MakeNetwork, start: Start) -> None:
    network = make_network(3, addresses=("ipv4",), router=True)
    processes = start(network, HERE / "fall.py", "1000", "0.01")
    wait_for(processes, "reduced")
    network.unplug(network.hosts[2])
    unplugged_s = time.monotonic()
    for rank, text in enumerate(outputs(processes)):
        assert processes[rank].returncode == 3, text
        failure = text.splitlines()[-1]
        assert "RankLostError" in failure and "has not answered for" in failure, text
        lost = re.search(r"host (\d) is lost", failure)
        assert lost and (lost[1] == "2") == (rank != 2), text
        assert float(failure.split()[-1]) - unplugged_s < LOST_S


def test_a_stopped_rank_is_not_lost(make_network: MakeNetwork, start: Start) -> None:
    """So much is on its way that the stopped rank's kernel must refuse to take more."""
    network = make_network(2, addresses=("ipv4",))
    processes = start(network, HERE / "fall.py", "4000000", "0.001")
    wait_for(processes, "reduced")
    os.kill(program_of(processes[1]), signal.SIGSTOP)
    time.sleep(6)
    assert processes[0].poll() is None
    os.kill(program_of(processes[1]), signal.SIGCONT)
    for _ in range(10):
        wait_for(processes, "reduced")
    for process in processes:
        process.kill()
        process.communicate()


def test_training_survives_delay_and_loss(make_network: MakeNetwork, start: Start) -> None:
    network = make_network(2, addresses=("ipv4",), router=True, seed=1)
    network.set_link(Link(delay_ms=15, rate_mbit=20, loss=0.01))
    assert_trained(start(network, HERE / "train.py", "auto", "3"))


def test_far_hosts_pace_their_packets(make_network: MakeNetwork, start: Start) -> None:
    network = make_network(2, addresses=("ipv4",), router=True)
    network.set_link(Link(delay_ms=15))
    processes = start(network, HERE / "fall.py", "1000", "0.01")
    wait_for(processes, "reduced")
    for host in network.hosts:
        # "pacing_rate 1Mbps/2Mbps": the most comes after the slash, if the socket has one.
        assert re.search(r"pacing_rate \w+/", host.check(["ss", "-tinH"]))
    for process in processes:
        process.kill()
        process.communicate()


def test_training_goes_on_after_a_second_without_network(
    make_network: MakeNetwork, start: Start
) -> None:
    network = make_network(2, addresses=("ipv4",), router=True)
    network.set_link(Link(delay_ms=15))
    processes = start(network, HERE / "train.py", "auto", "6")
    wait_for(processes, "step 2")
    network.unplug(network.hosts[1])
    time.sleep(1)
    network.plug(network.hosts[1])
    assert_trained(processes)


def test_training_through_a_slow_link_of_one_of_three_hosts(
    make_network: MakeNetwork, start: Start
) -> None:
    network = make_network(3, addresses=("ipv4",))
    network.set_link(Link(rate_mbit=200))
    network.set_link(Link(rate_mbit=20), network.hosts[2])
    assert_trained(start(network, HERE / "train.py", "auto", "3"))


def test_ranks_talk_through_the_chosen_network(make_network: MakeNetwork, start: Start) -> None:
    network = make_network(2, addresses=("ipv4",), nics=2)
    network.unplug(nic=0)
    assert_trained(start(network, HERE / "train.py", "auto", "3", nic=1, CIRANDA_NIC="eth1"))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_training_survives_worse_networks(
    make_network: MakeNetwork, start: Start, seed: int
) -> None:
    network = make_network(3, addresses=("ipv6",), router=True, seed=seed)
    network.set_link(Link(delay_ms=20 * seed, rate_mbit=20, loss=0.03))
    assert_trained(start(network, HERE / "train.py", "auto", "5", CIRANDA_PEER_TIMEOUT="20"))
