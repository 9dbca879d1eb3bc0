"""Two hosts, which are network namespaces of this machine, against c10d's Gloo on the same link."""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.common import (
    ROUNDS_PER_START,
    Launcher,
    Samples,
    Side,
    as_json,
    running,
)
from benchmarks.report import Report
from benchmarks.test_allreduce import MIB, median_us, size_name
from benchmarks.training import WARM_UP_STEPS, WINDOW_S, best_ddp_settings, images_per_s

from ciranda.measure import hosts
from ciranda.netns.link import Link
from ciranda.netns.namespace import obstacle
from ciranda.netns.network import Network

PORTS = itertools.count(hosts.PORT)  # of the sides, which live at once
JOBS = tempfile.TemporaryDirectory(prefix="bench-hosts-")
ITERATIONS = {4: 1000, MIB: 60, 64 * MIB: 5}
# Gradients of MobileNetV2: 3.5 M parameters in 158 tensors.
MANY = {"tensors": 158, "bytes": 14 * MIB}
SLOW = Link(delay_ms=30, rate_mbit=20)
SLOW_ROUNDS = 3
SLOW_CALLS = 3  # in a row: BBR drains its queue every 10 s, which hits some calls and others not
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
# How ciranda sends between hosts, as it stands in checks -> its variables.
WAYS = {
    "hosts": {},
    "hosts.gloo": {"CIRANDA_CPU_OPERATIONS": "gloo", "CIRANDA_TRUSTED_NETWORK": "1"},
}
over_each_way = pytest.mark.parametrize("way", WAYS)
# How what passes between hosts is protected. No TLS of the kernel: few kernels have it.
PROTECTIONS = {
    "in clear": {"CIRANDA_TRUSTED_NETWORK": "1"},
    "authenticated": {},
    "TLS": {"CIRANDA_TLS": "1"},
}
Sides = Callable[[Network], list[Callable[[], Side]]]


def through_hosts(
    network: Network, ours: bool, variables: Mapping[str, str] = WAYS["hosts"]
) -> Launcher:
    """Ranks of ciranda, or of torch.distributed, on every host."""
    if ours:
        return hosts.ciranda_through(network, PORTS, Path(JOBS.name), variables)
    return hosts.torch_through(network, PORTS)


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    with Report("hosts", "2 hosts (network namespaces of one machine)").kept(log=True) as filled:
        yield filled


@pytest.fixture
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Network]:
    why = obstacle()
    if why:
        pytest.skip(f"no hosts can be made here: {why}")
    with Network(
        2, tmp_path / "net", addresses=("ipv4",), router=hasattr(request, "param")
    ) as made:
        if hasattr(request, "param"):
            made.set_link(request.param)
        yield made


def title_of(way: str) -> str:
    return "" if way == "hosts" else " (ciranda on gloo)"


def allreduce_sides(
    network: Network, ranks_per_host: int = 1, way: str = "hosts"
) -> list[Callable[[], Side]]:
    def make(name: str, script: str) -> Callable[[], Side]:
        launcher = through_hosts(network, name == "ciranda", WAYS[way])
        return lambda: Side(name, launcher, script, (), 2 * ranks_per_host)

    return [make("ciranda", "allreduce_ciranda.py"), make("c10d", "allreduce_c10d.py")]


def times_of_allreduce(
    make_sides: Sequence[Callable[[], Side]], rounds: int
) -> dict[int, dict[str, Samples]]:
    """Microseconds by size and side."""
    times: dict[int, dict[str, Samples]] = {size: {} for size in ITERATIONS}
    with running(make_sides) as sides:
        for _ in range(rounds):
            for size, iterations in ITERATIONS.items():
                for side in sides:
                    us = median_us(side, {"bytes": size, "iterations": iterations})
                    times[size].setdefault(side.name, Samples()).add(us)
    return times


@over_each_way
def test_allreduce(network: Network, way: str, report: Report, benchmark: Any) -> None:
    sides = allreduce_sides(network, way=way)
    times = benchmark.pedantic(
        times_of_allreduce, args=(sides, 2 * ROUNDS_PER_START), rounds=1, iterations=1
    )
    names = list(times[4])
    report.table(
        [f"all-reduce, µs{title_of(way)}", *names],
        [[size_name(size), *(times[size][n].show(1) for n in names)] for size in ITERATIONS],
    )
    for size, key in ((4, "4B"), (MIB, "1MiB"), (64 * MIB, "64MiB")):
        report.data[f"allreduce {key}, us{title_of(way)}"] = as_json(times[size])
        report.panels[f"{size_name(size)}, µs{title_of(way)}"] = times[size]
        ratio = times[size]["c10d"].over(times[size]["ciranda"])
        report.check(
            f"{way}.{key}.c10d",
            f"all-reduce of {size_name(size)}: c10d ÷ ciranda{title_of(way)}",
            ratio,
        )


@pytest.mark.parametrize("rate_mbit", [None, 10_000, 1000])
def test_protection(
    network: Network, rate_mbit: float | None, report: Report, benchmark: Any
) -> None:
    """What it costs that nobody can change, or read, what passes between hosts."""
    network.set_link(Link(rate_mbit=rate_mbit))

    def make(name: str) -> Callable[[], Side]:
        variables = PROTECTIONS.get(name, {})
        launcher = through_hosts(network, name in PROTECTIONS, variables=variables)
        script = "allreduce_ciranda.py" if name in PROTECTIONS else "allreduce_c10d.py"
        return lambda: Side(name, launcher, script, (), 2)

    sides = [make(name) for name in (*PROTECTIONS, "c10d, in clear")]
    rounds = ROUNDS_PER_START if rate_mbit else 2 * ROUNDS_PER_START
    times = benchmark.pedantic(times_of_allreduce, args=(sides, rounds), rounds=1, iterations=1)
    rate = f"{rate_mbit / 1000:g} Gbit/s" if rate_mbit else "no limit"
    report.table(
        [f"all-reduce, µs, {rate}", *times[4]],
        [[size_name(size), *(s.show(1) for s in times[size].values())] for size in ITERATIONS],
    )
    for size in ITERATIONS:
        report.data[f"protection {rate} {size_name(size)}, us"] = as_json(times[size])
    report.panels[f"64 MiB, µs, {rate}"] = times[64 * MIB]
    report.check(
        f"hosts.authenticated.{rate_mbit}",
        f"all-reduce of 64 MiB, {rate}: authenticated ÷ in clear",
        times[64 * MIB]["authenticated"].over(times[64 * MIB]["in clear"]),
    )


@over_each_way
def test_training(network: Network, way: str, report: Report, benchmark: Any) -> None:
    rates: dict[str, Samples] = {}

    def one_start() -> None:
        def make(name: str) -> Callable[[], Side]:
            launcher = through_hosts(network, name != "ddp", variables=WAYS[way])
            return lambda: Side(name, launcher, "train.py", ["--side", name, "--model", "mlp"])

        with running([make("ddp"), make("ciranda")]) as sides:
            steps = int(WINDOW_S["mlp"] * 250)
            settings, _ = best_ddp_settings(sides[0], steps // 4, interfaces=("eth0", "eth0,eth0"))
            sides[0].ask({"configure": settings})
            for _ in range(2 * ROUNDS_PER_START):
                for side in sides:
                    images_per_s(side, WARM_UP_STEPS)
                    rates.setdefault(side.name, Samples()).add(images_per_s(side, steps))

    benchmark.pedantic(one_start, rounds=1, iterations=1)
    name = f"mlp, images/s{title_of(way)}"
    report.table([name, *rates], [["2 hosts", *(r.show(0) for r in rates.values())]])
    report.data[f"mlp images/s{title_of(way)}"] = as_json(rates)
    report.panels[name] = rates
    ratio = rates["ciranda"].over(rates["ddp"])
    report.check(f"{way}.mlp.ddp", f"mlp: ciranda ÷ DDP{title_of(way)}", ratio)


# Linux's default, and what pauses least where packets are lost.
@pytest.mark.parametrize("control", ["cubic", "bbr"])
@pytest.mark.parametrize("network", [SLOW], indirect=True)
def test_slow_link(network: Network, control: str, report: Report, benchmark: Any) -> None:
    for host in network.hosts:
        set_to = host.run(["sh", "-c", f"echo {control} > {CONGESTION_CONTROL}"])
        if set_to.returncode != 0:
            pytest.skip(f"{control} is not among net.ipv4.tcp_allowed_congestion_control")
    times: dict[str, Samples] = {}

    def one_start() -> None:
        with running(allreduce_sides(network)) as sides:
            for _ in range(SLOW_ROUNDS):
                for side in sides:
                    replies = side.ask({**MANY, "iterations": SLOW_CALLS, "warm_up": 1})
                    for seconds in zip(*(reply["seconds"] for reply in replies), strict=True):
                        times.setdefault(side.name, Samples()).add(max(seconds))

    benchmark.pedantic(one_start, rounds=1, iterations=1)
    # What two hosts must send at least, and four round trips.
    rate_mbit = SLOW.rate_mbit or 1.0
    limit_s = 1.10 * MANY["bytes"] * 8e-6 / rate_mbit + 4 * 2 * SLOW.delay_ms / 1000
    name = f"{MANY['tensors']} tensors of 14 MiB, 30 ms, 20 Mbit/s, {control}"
    report.table([f"{name}, s", *times], [["", *(t.show(2) for t in times.values())]])
    report.data[f"{name}, s"] = as_json(times)
    report.panels[f"slow link, {control}, s"] = times
    report.check(
        f"hosts.slow.{control}",
        f"{name}: ciranda ÷ (1.10 bytes/bandwidth + 4 round trips)",
        times["ciranda"].scaled(1 / limit_s),
    )


def test_hierarchical(network: Network, report: Report, benchmark: Any) -> None:
    """Both are reduced inside the host first; private memory is copied to a stage and back."""
    size, iterations = 16 * MIB, 10
    times: dict[str, Samples] = {}
    sent: dict[str, Samples] = {}

    def sent_bytes() -> int:
        links = json.loads(network.hosts[1].check(["ip", "-json", "-s", "link", "show", "eth0"]))
        return int(links[0]["stats64"]["tx"]["bytes"])

    def one_start() -> None:
        with running(allreduce_sides(network, ranks_per_host=2)[:1]) as (side,):
            for _ in range(2 * ROUNDS_PER_START):
                for name, arena in (("private", False), ("arena", True)):
                    before = sent_bytes()
                    command = {"bytes": size, "iterations": iterations, "arena": arena}
                    replies = side.ask({**command, "warm_up": 0})
                    us = max(statistics.median(reply["seconds"]) for reply in replies) * 1e6
                    times.setdefault(name, Samples()).add(us)
                    each = (sent_bytes() - before) / iterations / size
                    sent.setdefault(name, Samples()).add(each)

    benchmark.pedantic(one_start, rounds=1, iterations=1)
    report.table(
        ["2 hosts x 2 ranks, 16 MiB", *times],
        [
            ["µs", *(t.show(0) for t in times.values())],
            ["bytes sent by a host ÷ size", *(s.show(2) for s in sent.values())],
        ],
    )
    report.panels["2 x 2 ranks, 16 MiB, µs"] = times
    report.data["hierarchical"] = {"us": as_json(times), "sent": as_json(sent)}
    report.check(
        "hosts.hierarchical.bytes",
        "bytes on the link ÷ size",
        sent["private"],
    )
    report.check(
        "hosts.hierarchical.time",
        "time: private ÷ arena",
        times["private"].over(times["arena"]),
    )
