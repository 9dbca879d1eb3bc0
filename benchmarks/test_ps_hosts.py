"""A parameter server on another host (two network namespaces of this machine), beside torch's RPC,
Ray and what plain sockets copy, and how the load falls with the number of servers."""

from __future__ import annotations

import functools
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from benchmarks import common
from benchmarks.report import Report
from benchmarks.test_hosts import network  # noqa: F401 - a fixture
from benchmarks.test_ps import MIB, RAY, STEP_BYTES, STEPS, percentile_99, ray_version

import ciranda
from ciranda.measure.hosts import make_key
from ciranda.netns.network import Network

SERVER = Path(ciranda.__file__).parent / "bin" / "ciranda-ps"
PORTS = itertools.count(29600)
SIDES = {
    "ciranda": "ciranda, authenticated",
    "trusted": "ciranda, trusted network",
    "tls": "ciranda, TLS",
    "rpc": "torch.distributed.rpc, rpc_sync() over TensorPipe",
    "ray": "Ray, a method of an actor",
    "sockets": "limit: plain sockets, as much to and fro",
}
# How ciranda protects what travels: for the server, and for the worker.
PROTECTION: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "ciranda": ((), {}),
    "trusted": (("--trusted-network",), {"CIRANDA_TRUSTED_NETWORK": "1"}),
    "tls": (("--tls",), {"CIRANDA_TLS": "1"}),
}
SERVERS = (1, 2, 4, 8)
ROUNDS = 5  # in each of which all sides are started anew

HOW = """The worker is on one host and the server on the other; a step is what it is in the table of
one host. Plain sockets: one TCP connection, on which a process sends as many bytes as the gradient
has, and gets as many back once the other has all of them; a loop in Python over send() and
recv_into(), nothing is computed, copied or checked. All share two cores, and the network between
the namespaces is a copy by the kernel."""


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    title = "Parameter servers on another host (network namespaces of one machine)"
    with Report("ps-hosts", title).kept(log=True) as filled:
        filled.machine["ray"] = "absent" if RAY.missing else ray_version()
        filled.sections.append(HOW)
        yield filled


class Between:
    """Starts a side whose worker is on the first host and whose servers are on the second."""

    def __init__(self, hosts: Network, side: str, servers: int = 1) -> None:
        self.here, self.there = hosts.hosts
        self.side = side
        self.servers = servers

    def __call__(
        self, worker: Sequence[str], log: IO[bytes], ranks: int
    ) -> list[subprocess.Popen[bytes]]:
        self.log = log
        self.worker = [sys.executable, *worker]
        if self.side in PROTECTION:
            return self._ciranda(*PROTECTION[self.side])
        return self._ray() if self.side == "ray" else self._pair(ranks)

    def _start(self, host: Any, command: Sequence[str], env: Mapping[str, Any]) -> Any:
        return host.popen(
            command,
            env=common.one_thread_env(**{name: str(value) for name, value in env.items()}),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def _ciranda(
        self, options: Sequence[str], variables: Mapping[str, str]
    ) -> list[subprocess.Popen[bytes]]:
        key = make_key(Path(tempfile.mkdtemp(prefix="bench-ps-")))
        endpoints = [f"{self.there.address()}:{next(PORTS)}" for _ in range(self.servers)]
        processes = []
        for server, endpoint in enumerate(endpoints):
            command = [str(SERVER), "--workers=1", "--listen", endpoint, "--key-file", str(key)]
            command += [f"--servers={self.servers}", f"--server={server}", *options]
            processes.append(self._start(self.there, command, {}))
        place = {"CIRANDA_RANK": 0, "CIRANDA_SIZE": 1}
        told = {"CIRANDA_PS": ",".join(endpoints), "CIRANDA_KEY_FILE": key, **variables}
        return [self._start(self.here, self.worker, {**place, **told}), *processes]

    def _pair(self, ranks: int) -> list[subprocess.Popen[bytes]]:
        """Rank 0 is the worker, rank 1 the server."""
        meeting = {
            "WORLD_SIZE": ranks,
            "MASTER_ADDR": self.here.address(),
            "MASTER_PORT": next(PORTS),
            "GLOO_SOCKET_IFNAME": "eth0",
            "TP_SOCKET_IFNAME": "eth0",
        }
        places = enumerate((self.here, self.there))
        return [self._start(host, self.worker, {"RANK": rank, **meeting}) for rank, host in places]

    def _ray(self) -> list[subprocess.Popen[bytes]]:
        # By the interpreter that has torch: what it starts has it too.
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        ray += ["--disable-usage-stats", "--num-cpus=2", f"--object-store-memory={2**30}"]
        port = next(PORTS)
        address = f"{self.there.address()}:{port}"
        env = {"PYTHONPATH": RAY.packages, "RAY_USAGE_STATS_ENABLED": 0}
        head = [*ray, "--head", f"--port={port}", f"--node-ip-address={self.there.address()}"]
        head += ["--include-dashboard=false", f"--resources={json.dumps({'server': 1})}"]
        node = [*ray, f"--address={address}", f"--node-ip-address={self.here.address()}"]
        return [
            self._start(self.here, self.worker, {**env, "RAY_ADDRESS": address}),
            self._start(self.there, head, env),
            self._start(self.here, node, env),
        ]


class SideWithNodes(common.Side):
    """Nodes that serve a worker do not end with it by themselves."""

    def close(self) -> None:
        for node in self._processes[1:]:
            node.terminate()
        super().close()


def maker(hosts: Network, side: str, size: int, servers: int = 1) -> functools.partial[common.Side]:
    way = "ciranda" if side in PROTECTION else side
    return functools.partial(
        SideWithNodes if side == "ray" else common.Side,
        side,
        Between(hosts, side, servers),
        "ps_step.py",
        ["--side", way, "--bytes", str(size)],
        2 if side in ("rpc", "sockets") else 1,
    )


@pytest.mark.parametrize("size", STEP_BYTES)
def test_step(
    size: str,
    network: Network,  # noqa: F811
    report: Report,
    benchmark: Any,
) -> None:
    p50: dict[str, common.Samples] = {}
    p99: dict[str, common.Samples] = {}

    def one_round() -> None:
        """Each side alone: TensorPipe's threads keep two cores busy also while nobody calls."""
        for side in SIDES:
            if side == "ray" and RAY.missing:
                continue
            with common.running([maker(network, side, STEP_BYTES[size])]) as (running,):
                running.ask({"iterations": STEPS[size] // 2})
                seconds = running.ask({"iterations": STEPS[size]})[0]["seconds"]
            p50.setdefault(side, common.Samples()).add(statistics.median(seconds))
            p99.setdefault(side, common.Samples()).add(percentile_99(seconds))

    benchmark.pedantic(one_round, rounds=ROUNDS, iterations=1)
    report.table(
        [f"a step of {size}, the server elsewhere", "median, µs", "99th percentile, µs", "÷ first"],
        [
            [
                SIDES[side],
                samples.scaled(1e6).show(1),
                p99[side].scaled(1e6).show(1),
                samples.over(p50["ciranda"]).show(),
            ]
            for side, samples in p50.items()
        ],
    )
    for peer in ("rpc", "ray"):
        if peer in p50:
            ratio = p50[peer].over(p50["ciranda"])
            report.check(f"ps-hosts.{size}.{peer}", f"{size}: {peer} ÷ ciranda", ratio)
    if size == "64 MiB":
        for side in PROTECTION:
            ratio = p50["sockets"].over(p50[side])
            report.check(f"ps-hosts.{side}", f"{size}: plain sockets ÷ {SIDES[side]}", ratio)
    report.data[f"step_{size}_p50_s"] = common.as_json(p50)
    report.data[f"step_{size}_p99_s"] = common.as_json(p99)
    report.panels[f"step of {size}, s"] = p50


def test_more_servers(network: Network, report: Report, benchmark: Any) -> None:  # noqa: F811
    """What each of N servers has to do for a step of one worker."""
    what = ("step, ms", "MB through a server", "ms at work, a server")
    by_count = {count: {each: common.Samples() for each in what} for count in SERVERS}
    steps = STEPS["64 MiB"]

    def one_round() -> None:
        for count, samples in by_count.items():
            with common.running([maker(network, "trusted", 64 * MIB, count)]) as (running,):
                running.ask({"iterations": steps // 2})
                before = running.ask({"servers": True})[0]["servers"]
                seconds = running.ask({"iterations": steps})[0]["seconds"]
                after = running.ask({"servers": True})[0]["servers"]
            done = [
                {name: now[name] - then[name] for name in now}
                for then, now in zip(before, after, strict=True)
            ]
            samples[what[0]].add(statistics.median(seconds) * 1e3)
            samples[what[1]].add(max(each["bytes"] for each in done) / steps / 1e6)
            samples[what[2]].add(max(each["busy_s"] for each in done) / steps * 1e3)

    benchmark.pedantic(one_round, rounds=common.ROUNDS_PER_START, iterations=1)
    report.table(
        ["64 MiB, servers", *what],
        [
            [str(count), *(s.show(1) for s in samples.values())]
            for count, samples in by_count.items()
        ],
    )
    for count in SERVERS[1:]:
        for key, name in (("bytes", what[1]), ("work", what[2])):
            share = by_count[count][name].over(by_count[1][name]).scaled(count)
            report.check(f"ps-hosts.{key}", f"{count} servers: {name}, ÷ 1/{count} of one's", share)
    report.data["by_servers"] = {
        count: common.as_json(samples) for count, samples in by_count.items()
    }
