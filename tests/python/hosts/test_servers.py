"""Parameter servers and workers on several hosts: breaks when training differs from one process,
when a network that is bad, or a host that is gone for a while, ends the job or slows down others,
or when somebody without the key is let in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from host_ranks import Process, outputs, wait_for
from ranks import OnHost
from test_bad_networks import program_of

import ciranda
from ciranda.launch.remote.meeting import make_key_file
from ciranda.netns.link import Link
from ciranda.netns.network import Network

HERE = Path(__file__).parent
PROGRAM = Path(ciranda.__file__).parent / "bin" / "ciranda-ps"
PORT = 29500
MakeNetwork = Callable[..., Any]


class Job:
    """Servers on the first hosts, and a worker on each of the last `workers`."""

    def __init__(self, network: Network, folder: Path, *, servers: int, workers: int) -> None:
        self.network = network
        self.folder = folder
        self.workers = workers
        self.key = make_key(folder / "key")
        self.endpoints = [
            f"{network.hosts[server].address()}:{PORT + server}" for server in range(servers)
        ]
        self.servers: dict[int, subprocess.Popen[str]] = {}
        self.running: list[Process] = []

    def start_servers(self, *options: str) -> None:
        for server in range(len(self.endpoints)):
            self.start_server(server, *options)

    def start_server(self, server: int, *options: str) -> None:
        endpoint = self.endpoints[server]
        command = [str(PROGRAM), "--workers", str(self.workers), "--listen", endpoint]
        command += ["--servers", str(len(self.endpoints)), "--server", str(server)]
        command += ["--key-file", str(self.key)]
        command += [f"{each}/{server}" if each.startswith("/") else each for each in options]
        self.servers[server] = self.network.hosts[server].popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.running.append(self.servers[server])

    def start_worker(self, rank: int, *arguments: str, **env: str) -> OnHost:
        host = len(self.network.hosts) - self.workers + rank
        place = {
            "RANK": rank,
            "SIZE": self.workers,
            "LOCAL_RANK": 0,
            "LOCAL_SIZE": 1,
            "CROSS_RANK": rank,
            "CROSS_SIZE": self.workers,
            "PS": ",".join(self.endpoints),
            "KEY_FILE": self.key,
            "START_TIMEOUT_SECONDS": 20,
        }
        told = {f"CIRANDA_{name}": str(value) for name, value in place.items()}
        worker = OnHost(self.network.hosts[host], HERE / "served.py", arguments, told | env)
        self.running.append(worker)
        return worker

    def start_workers(self, *arguments: str, **env: str) -> list[OnHost]:
        return [self.start_worker(rank, *arguments, **env) for rank in range(self.workers)]

    def unplug_for(self, host: int, seconds: float) -> None:
        self.network.unplug(self.network.hosts[host])
        time.sleep(seconds)
        self.network.plug(self.network.hosts[host])

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()


def make_key(path: Path) -> Path:
    make_key_file(str(path))
    return path


@pytest.fixture
def job(make_network: MakeNetwork, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def make(hosts: int, *, servers: int = 1, workers: int = 2, **network: Any) -> Job:
        made = make_network(hosts, addresses=("ipv4",), **network)
        jobs.append(Job(made, tmp_path, servers=servers, workers=workers))
        return jobs[-1]

    yield make
    for each in jobs:
        each.end()


def assert_trained(processes: list[OnHost], steps: int) -> None:
    for text in outputs(processes):
        result = json.loads(text.splitlines()[-1])
        assert result["off"] < 1e-6 and result["state_off"] < 1e-6, result
        assert max(result["pushes"]) == steps


@pytest.mark.parametrize(
    "protection", ["tags", "tls", pytest.param("trusted-network", marks=pytest.mark.soak)]
)
def test_rounds_between_hosts_are_one_process_with_the_joined_batch(
    job: Callable[..., Job], protection: str
) -> None:
    made = job(3, servers=2)
    options = [] if protection == "tags" else [f"--{protection}"]
    made.start_servers(*options)
    told = {f"CIRANDA_{protection.upper().replace('-', '_')}": "1"} if options else {}
    workers = made.start_workers("sync", "8", **told)
    assert_trained(workers, 8)
    for server, text in enumerate(outputs(list(made.servers.values()))):
        assert text.startswith(f"server {server} of 2: 16 pushes"), text


def test_who_has_another_key_is_turned_away(job: Callable[..., Job], tmp_path: Path) -> None:
    made = job(2, workers=1)
    made.start_servers()
    other = make_key(tmp_path / "other")
    worker = made.start_worker(
        0, "sync", "1", CIRANDA_KEY_FILE=str(other), CIRANDA_START_TIMEOUT_SECONDS="2"
    )
    (text,) = outputs([worker])
    assert "server 0 could not be reached in time" in text
    assert "may belong to another job" in text
    # It serves on.
    assert_trained([made.start_worker(0, "sync", "2")], 2)
    (said,) = outputs(list(made.servers.values()))
    assert "turned away" in said


@pytest.mark.parametrize("protection", [pytest.param("tags", marks=pytest.mark.soak), "tls"])
def test_servers_are_killed_and_started_again_by_hand(
    job: Callable[..., Job], tmp_path: Path, protection: str
) -> None:
    """And training is still one process with the joined batch."""
    made = job(3, servers=2)
    options = ["--dir", str(tmp_path / "state")] + (["--tls"] if protection == "tls" else [])
    made.start_servers(*options)
    told = {"CIRANDA_TLS": "1"} if protection == "tls" else {}
    workers = made.start_workers("sync", "24", PAUSE_S="0.02", **told)
    for kill in range(4):
        wait_for(workers, f"step {4 * kill + 2}")
        server = kill % 2
        os.kill(program_of(made.servers[server]), signal.SIGKILL)
        made.servers[server].wait(20)
        made.start_server(server, *options)
    assert_trained(workers, 24)
    assert not list((tmp_path / "state").glob("*/*"))


def test_rounds_survive_delay_and_loss(job: Callable[..., Job]) -> None:
    made = job(2, workers=1, router=True, seed=1)
    made.network.set_link(Link(delay_ms=180, rate_mbit=50, loss=0.01))
    made.start_servers()
    assert_trained(made.start_workers("sync", "4"), 4)


def test_rounds_go_on_after_a_second_without_network(job: Callable[..., Job]) -> None:
    made = job(3)
    made.start_servers()
    workers = made.start_workers("sync", "40", PAUSE_S="0.02")
    wait_for(workers, "step 2")
    made.unplug_for(2, seconds=1)
    assert_trained(workers, 40)


@pytest.mark.parametrize("seconds", [7, pytest.param(30, marks=pytest.mark.soak)])
def test_a_host_that_is_gone_for_a_while_keeps_nobody_and_comes_back(
    job: Callable[..., Job], seconds: int
) -> None:
    made = job(3)
    made.start_servers("--lease", "5")
    staying = made.start_worker(0, "sync", "100000", PAUSE_S="0.01")
    leaving = made.start_worker(1, "sync", "100000", PAUSE_S="0.01")
    wait_for([staying, leaving], "step 2")
    made.network.unplug(made.network.hosts[2])
    gone_s = time.monotonic()
    while time.monotonic() < gone_s + seconds:  # its lease is over, and rounds go on
        wait_for_a_step(staying)
    made.network.plug(made.network.hosts[2])
    for _ in range(20):
        wait_for_a_step(leaving)
        wait_for_a_step(staying)


@pytest.mark.soak
def test_a_server_whose_host_is_gone_for_half_a_minute_is_waited_for(
    job: Callable[..., Job],
) -> None:
    made = job(3)
    made.start_servers()
    workers = made.start_workers("async", "200", PAUSE_S="0.01")
    wait_for(workers, "step 2")
    made.unplug_for(0, seconds=30)
    results = [json.loads(text.splitlines()[-1]) for text in outputs(workers)]
    assert max(each["pushes"] for each in results) == [200, 200], results


def wait_for_a_step(process: OnHost) -> None:
    line = process.stdout.readline()
    while line.startswith("ciranda: ") and " has waited " in line:
        line = process.stdout.readline()
    assert line.startswith("step "), (line, process.communicate())


def test_a_worker_on_a_slow_link_slows_down_nobody(job: Callable[..., Job]) -> None:
    made = job(3)
    made.network.set_link(Link(rate_mbit=20), made.network.hosts[2])
    made.start_servers()
    fast = made.start_worker(0, "async", "300")
    slow = made.start_worker(1, "async", "100000")
    (text,) = outputs([fast])
    pushes = json.loads(text.splitlines()[-1])["pushes"]
    # A push of the slow one takes 0.7 s there and back, one of the fast one some milliseconds.
    assert pushes[0] == 300 and pushes[1] < 60, pushes
    assert slow.poll() is None


def test_a_killed_worker_comes_back_by_hand(job: Callable[..., Job]) -> None:
    made = job(3)
    made.start_servers()
    staying = made.start_worker(0, "async", "100000", PAUSE_S="0.01")
    dying = made.start_worker(1, "async", "100000", PAUSE_S="0.01")
    wait_for([staying, dying], "step 2")
    os.kill(program_of(dying), signal.SIGKILL)
    dying.wait(20)
    back = made.start_worker(1, "async", "5")
    (text,) = outputs([back])
    assert json.loads(text.splitlines()[-1])["pushes"][1] >= 5
    wait_for_a_step(staying)


def test_a_step_ahead_is_sent_while_the_program_computes(job: Callable[..., Job]) -> None:
    """On a link where sending takes longer than the call: the thread sends the rest."""
    made = job(2, workers=1)
    made.network.set_link(Link(rate_mbit=50))
    made.start_servers()
    (worker,) = made.start_workers("ahead", "5", PAUSE_S="0.5")
    (text,) = outputs([worker])
    assert json.loads(text.splitlines()[-1])["pushes"] == [5]


def test_strangers_who_call_as_fast_as_they_can_keep_no_worker_out(job: Callable[..., Job]) -> None:
    made = job(2, workers=1)
    made.start_servers()
    host, _, port = made.endpoints[0].rpartition(":")
    flood = made.network.hosts[1].popen(
        [sys.executable, str(HERE / "flood.py"), host, port, "20000"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    made.running.append(flood)
    assert flood.stdout.readline() == "ready\n"
    assert_trained(made.start_workers("sync", "8"), 8)
    flood.communicate()
    (said,) = outputs(list(made.servers.values()))
    assert "turned away" in said
