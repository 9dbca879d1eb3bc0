"""Training through a parameter server on another host (two network namespaces of this machine),
beside TensorFlow's ParameterServerStrategy."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Sequence
from typing import IO, Any

import pytest
from benchmarks import common
from benchmarks.report import Report
from benchmarks.test_hosts import network  # noqa: F401 - a fixture
from benchmarks.test_ps_hosts import PORTS, Between, SideWithNodes

from ciranda.netns.network import Network

TENSORFLOW = common.OwnEnvironment("tensorflow")
# How many steps TensorFlow's coordinator schedules at once: its tutorial's way, and a generous one.
AT_ONCE = (1, 20)
# How it protects what travels, and its way of workers/train.py.
OURS = {
    "ciranda, authenticated": ("ciranda", "ps async"),
    "ciranda, trusted network": ("trusted", "ps async"),
    "ciranda, trusted network, one step ahead": ("trusted", "ps ahead"),
}
DEFAULT = next(iter(OURS))
ALONE = "limit: the worker alone"
ROUNDS = 5  # in each of which all sides are started anew
WARM_UP_STEPS, STEPS = 100, 400

HOW = """A perceptron (784-512-512-10, 669,706 parameters), batches of 64 that are there, SGD. One
worker on one host, one server on the other, one thread for the computing of each process.
ciranda: DistributedOptimizer with Async(); every step pushes and gets the new parameters, or, with
ahead=1, those of the step before. Alone: the worker's own computing, without a server.
TensorFlow: ParameterServerStrategy over gRPC, its coordinator beside the worker, which schedules
each step alone, as in its tutorial, or 20 in one function. The sides run one after the other."""


class Cluster(Between):
    """Chief and worker on the first host, the server on the second."""

    def __call__(
        self, worker: Sequence[str], log: IO[bytes], ranks: int
    ) -> list[subprocess.Popen[bytes]]:
        self.log = log
        where = {"chief": self.here, "worker": self.here, "ps": self.there}
        cluster = {role: [f"{host.address()}:{next(PORTS)}"] for role, host in where.items()}
        quiet = {"TF_CPP_MIN_LOG_LEVEL": 2, "CUDA_VISIBLE_DEVICES": -1}
        return [
            self._start(
                host,
                [TENSORFLOW.python, *worker],
                {
                    "TF_CONFIG": json.dumps(
                        {"cluster": cluster, "task": {"type": role, "index": 0}}
                    ),
                    **quiet,
                },
            )
            for role, host in where.items()
        ]


def makers(hosts: Network) -> dict[str, common.SideMaker]:
    def trains(name: str, launcher: common.Launcher, way: str) -> common.SideMaker:
        arguments = ["--side", way, "--model", "mlp", "--optimizer", "sgd"]
        return functools.partial(common.Side, name, launcher, "train.py", arguments, 1)

    made = {
        name: trains(name, Between(hosts, protection), way)
        for name, (protection, way) in OURS.items()
    }
    for steps in AT_ONCE:
        name = f"TensorFlow, {steps} step{'s' if steps > 1 else ''} at once"
        theirs = ["--steps-at-once", str(steps)]
        made[name] = functools.partial(
            SideWithNodes, name, Cluster(hosts, name), "ps_tensorflow.py", theirs, 1
        )
    made[ALONE] = trains(ALONE, common.through_ciranda, "alone")
    return made


@pytest.mark.skipif(TENSORFLOW.missing, reason="tensorflow-cpu could not be installed")
def test_training(network: Network, benchmark: Any) -> None:  # noqa: F811
    rates: dict[str, common.Samples] = {}

    def one_round() -> None:
        for name, make in makers(network).items():
            with common.running([make]) as (side,):
                side.ask({"steps": WARM_UP_STEPS})
                reply = side.ask({"steps": STEPS})[0]
            rates.setdefault(name, common.Samples()).add(reply["images"] / reply["elapsed_s"])

    title = "Parameter servers beside TensorFlow's (network namespaces of one machine)"
    with Report("ps-tensorflow", title).kept() as report:
        command = [TENSORFLOW.python, "-c", "import tensorflow as tf; print(tf.__version__)"]
        report.machine["tensorflow"] = common.first_line_of(command)
        report.sections.append(HOW)
        benchmark.pedantic(one_round, rounds=ROUNDS, iterations=1)
        report.table(
            ["mlp, one worker, the server elsewhere", "images/s", "÷ first"],
            [
                [name, samples.show(0), samples.over(rates[DEFAULT]).show()]
                for name, samples in rates.items()
            ],
        )
        theirs = [name for name in rates if name not in (*OURS, ALONE)]
        best = max(theirs, key=lambda name: rates[name].median)
        for name in OURS:
            ratio = rates[name].over(rates[best])
            report.check(f"ps-tensorflow.{name}", f"mlp: {name} ÷ {best}", ratio)
        report.data["images_per_s"] = common.as_json(rates)
        report.panels["images/s"] = rates
