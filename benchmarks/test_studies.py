"""Two published comparisons, each by one command:

    python -m pytest benchmarks/test_studies.py -k hosts       one machine, ring, parameter servers
    python -m pytest benchmarks/test_studies.py -k one_host    mirrored, and servers in their modes

The studies trained with TensorFlow: one with a ring and with asynchronous parameter servers on two
machines, through a LAN and a slow VPN; one with mirrored parameters, and with parameter servers,
synchronous, asynchronous and with Downpour SGD. Here all train the same model on Fashion-MNIST, and
each row has its accuracy too. A third one, of native roles and a sharded saver:

    python -m pytest benchmarks/test_study_roles.py
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
from benchmarks import common
from benchmarks.report import Report
from benchmarks.test_hosts import JOBS, PORTS, SLOW, obstacle, through_hosts
from benchmarks.test_ps import FASHION_MNIST, SLOWNESS, Curve, seconds_to
from benchmarks.test_ps_hosts import SERVER

from ciranda.measure import hosts
from ciranda.netns.network import Network

TRAINING_IMAGES = 60_000
ACCURACY = 0.85
SECONDS = 10.0
EVERY_S = 0.25
RUNS = 3

# What a row is called, and its way of workers/ps_curve.py.
BACKED_UP = "async, backed up"
ON_HOSTS = {
    "one machine": "single",
    "ring": "ring",
    "parameter servers, asynchronous": "async",
    "the same, backed up": BACKED_UP,
    "parameter servers, synchronous": "sync",
    "parameter servers, Downpour SGD": "downpour",
}
HALVED = "ring, gradients in 16 bits"
ON_ONE_HOST = {
    "one process": "single",
    "mirrored (ring)": "ring",
    "parameter server, synchronous": "sync",
    "parameter server, asynchronous": "async",
    "parameter server, Downpour SGD": "downpour",
    "parameter server, Sandblaster L-BFGS": "sandblaster",
}

HOW = f"""A perceptron of 101,770 parameters (784-128-10), batches of 64 on each worker, Adam with a
learning rate of 1e-3 (Downpour: Adagrad, 1e-2, gradients of 8 steps as one; Sandblaster: L-BFGS
over all 60,000 images, in portions of 5,000), on Fashion-MNIST for {SECONDS:g} seconds, {RUNS}
runs; two workers with one thread each, but for one machine or process.
Targets are what the study reports of its own systems and machines."""
ABOUT_HOSTS = """Hosts are network namespaces of one machine; the slow link takes 30 ms each way and
20 Mbit/s. Each host has one of two parameter servers. Backed up: each server keeps its log and
snapshots, and makes a checkpoint each 1,000 pushes, so that it can be killed at any time."""


@contextlib.contextmanager
def report_of(name: str, title: str, *about: str) -> Iterator[Report]:
    if not FASHION_MNIST.exists():
        pytest.skip("Fashion-MNIST is not there: apt install dataset-fashion-mnist")
    with Report(name, title).kept() as report:
        report.sections += about
        yield report


@contextlib.contextmanager
def two_hosts(folder: Path, *, slow: bool) -> Iterator[Network]:
    with Network(2, folder, addresses=("ipv4",), router=slow) as network:
        if slow:
            network.set_link(SLOW)
        yield network


def through_hosts_and_servers(network: Network, *, backed_up: bool) -> common.Launcher:
    """A worker and a server on each host."""

    def launch(worker: Sequence[str], log: IO[bytes], ranks: int) -> list[subprocess.Popen[bytes]]:
        key = hosts.make_key(Path(tempfile.mkdtemp(dir=JOBS.name)))
        endpoints = [f"{host.address()}:{next(PORTS)}" for host in network.hosts]

        def start(host: Any, command: Sequence[str], **told: object) -> subprocess.Popen[bytes]:
            process: subprocess.Popen[bytes] = host.popen(
                command,
                env=common.one_thread_env(**{name: str(value) for name, value in told.items()}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            return process

        told = {"CIRANDA_PS": ",".join(endpoints), "CIRANDA_KEY_FILE": key, "CIRANDA_SIZE": ranks}
        processes = []
        for number, (host, endpoint) in enumerate(zip(network.hosts, endpoints, strict=True)):
            command = [str(SERVER), f"--workers={ranks}", f"--servers={len(endpoints)}"]
            command += [f"--server={number}", "--listen", endpoint, "--key-file", str(key)]
            if backed_up:
                command += ["--dir", str(key.with_name(f"state-{number}"))]
                command += ["--checkpoint-dir", str(key.with_name("checkpoints"))]
            processes.append(start(host, command))
            processes.append(start(host, [sys.executable, *worker], CIRANDA_RANK=number, **told))
        return processes

    return launch


class Runs:
    """What came of a row's runs."""

    def __init__(self) -> None:
        self.images_per_s = common.Samples()
        self.curves: list[Curve] = []

    def add(self, make_side: common.SideMaker, slowness: Sequence[float]) -> None:
        with common.running([make_side]) as (side,):
            asked = {"seconds": SECONDS, "every_s": EVERY_S, "slowness": slowness}
            replies = side.ask(asked)
        self.images_per_s.add(sum(each["images"] / each["elapsed_s"] for each in replies))
        self.curves.append(replies[0]["curve"])

    def row(self, title: str, *more: str) -> list[str]:
        epochs = common.Samples([TRAINING_IMAGES / rate for rate in self.images_per_s.values])
        ends = common.Samples([100 * curve[-1][1] for curve in self.curves])
        reached = seconds_to(ACCURACY, self.curves)
        return [title, self.images_per_s.show(0), epochs.show(1), *more, reached, ends.show(1)]

    def as_json(self) -> common.Json:
        return {"images_per_s": self.images_per_s.values, "curves": self.curves}


def headings(case: str, *more: str) -> list[str]:
    return [
        case,
        "images/s",
        "seconds an epoch",
        *more,
        f"seconds to {ACCURACY:.0%}",
        f"accuracy after {SECONDS:g} s, %",
    ]


def sandblaster(seed: int) -> common.SideMaker:
    """Two workers, one server, and the coordinator, which is the one that answers."""

    def launch(worker: Sequence[str], log: IO[bytes], ranks: int) -> list[subprocess.Popen[bytes]]:
        program = [sys.executable, *worker]
        return common.program_through_ciranda(program, log, common.RANKS, 1, coordinator=True)

    arguments = ["--side", "sandblaster", "--seed", str(seed)]
    return functools.partial(common.Side, "sandblaster", launch, "ps_sandblaster.py", arguments, 1)


def side_of(launcher: common.Launcher, way: str, seed: int) -> common.SideMaker:
    ranks = 1 if way == "single" else common.RANKS
    arguments = ["--side", "async" if way == BACKED_UP else way, "--seed", str(seed)]
    return functools.partial(common.Side, way, launcher, "ps_curve.py", arguments, ranks)


@pytest.mark.timeout(3600)
def test_one_machine_ring_and_servers_on_two_hosts(tmp_path: Path, benchmark: Any) -> None:
    why = obstacle()
    if why:
        pytest.skip(f"no hosts can be made here: {why}")
    equal, straggling = [1.0, 1.0], [1.0, SLOWNESS]
    cases = {
        "LAN": (False, equal),
        f"LAN, one of two workers {SLOWNESS:g} times slower": (False, straggling),
        "slow link": (True, equal),
    }
    found: dict[str, dict[str, Runs]] = {}

    def launcher_of(network: Network, title: str, way: str) -> common.Launcher:
        if way == "single":
            return common.through_ciranda
        if way == "ring":
            narrow = {"CIRANDA_WIRE_DTYPE": "bfloat16"} if title == HALVED else {}
            return through_hosts(network, ours=True, variables=narrow)
        return through_hosts_and_servers(network, backed_up=way == BACKED_UP)

    def one_run(seed: int) -> None:
        for number, (case, (slow, slowness)) in enumerate(cases.items()):
            ways = {title: way for title, way in ON_HOSTS.items() if number == 0 or way != "single"}
            ways |= {HALVED: "ring"} if slow else {}
            with two_hosts(tmp_path / f"net-{seed}-{number}", slow=slow) as network:
                for title, way in ways.items():
                    runs = found.setdefault(case, {}).setdefault(title, Runs())
                    runs.add(side_of(launcher_of(network, title, way), way, seed), slowness)

    seeds = iter(range(RUNS))
    title = "One machine, a ring, and parameter servers on two hosts"
    with report_of("study-hosts", title, HOW, ABOUT_HOSTS) as report:
        benchmark.pedantic(lambda: one_run(next(seeds)), rounds=RUNS, iterations=1)
        for case, rows in found.items():
            report.table(headings(case), [runs.row(title) for title, runs in rows.items()])
            report.data[case] = {title: runs.as_json() for title, runs in rows.items()}
        lan, straggler, slow = (
            {ON_HOSTS[title]: runs.images_per_s for title, runs in rows.items() if title != HALVED}
            for rows in found.values()
        )
        report.check(
            "studies.slow",
            "an epoch of the ring: slow link ÷ LAN",
            lan["ring"].over(slow["ring"]),
        )
        report.check(
            "studies.straggler",
            "an epoch with one slow worker: ring ÷ asynchronous servers",
            straggler["async"].over(straggler["ring"]),
        )


@pytest.mark.timeout(1800)
def test_mirrored_and_servers_on_one_host(benchmark: Any) -> None:
    found: dict[str, Runs] = {title: Runs() for title in ON_ONE_HOST}

    def one_run(seed: int) -> None:
        for title, way in ON_ONE_HOST.items():
            if way == "sandblaster":
                found[title].add(sandblaster(seed), [1.0, 1.0])
                continue
            served = way not in ("single", "ring")
            launcher = common.through_servers(1) if served else common.through_ciranda
            found[title].add(side_of(launcher, way, seed), [1.0, 1.0])

    seeds = iter(range(RUNS))
    title = "One process, mirrored, and a parameter server"
    with report_of("study-one-host", title, HOW) as report:
        benchmark.pedantic(lambda: one_run(next(seeds)), rounds=RUNS, iterations=1)
        alone = found["one process"].images_per_s
        scaling = {t: runs.images_per_s.over(alone).scaled(50) for t, runs in found.items()}
        report.table(
            headings("two processes on one host", "% of twice one process"),
            [runs.row(title, scaling[title].show(0)) for title, runs in found.items()],
        )
        report.data["one_host"] = {title: runs.as_json() for title, runs in found.items()}
        report.check(
            "studies.scaling",
            "images/s of two mirrored processes, % of twice one process",
            scaling["mirrored (ring)"],
            0,
        )
