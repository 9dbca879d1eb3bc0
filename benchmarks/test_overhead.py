"""What ciranda costs beside the reduction: time per parameter, memory, the launcher's start."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from benchmarks.common import (
    ROUNDS_PER_START,
    STARTS,
    Samples,
    Side,
    as_json,
    ciranda_command,
    running,
    training_sides,
)
from benchmarks.report import Report

MIB = 1024 * 1024
STEPS = 300
WARM_UP_STEPS = 50
MEMORY_STEPS = 4
SIDES = ("alone", "ddp", "ciranda")
LAUNCHER_RUNS = 7
SLOW_LAUNCHER_RUNS = 3  # torchrun takes seconds


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    with Report("overhead", "Costs beside the reduction, 2 ranks").kept() as filled:
        yield filled


def median_step_us(side: Side) -> float:
    """Of the slower rank."""
    replies = side.ask({"steps": STEPS})
    return max(statistics.median(reply["step_s"]) for reply in replies) * 1e6


def test_cost_per_parameter(report: Report, benchmark: Any) -> None:
    steps: dict[str, Samples] = {}
    tensors = 0

    def one_start() -> None:
        nonlocal tensors
        with running(training_sides("many_small", SIDES)) as sides:
            tensors = sides[0].ask({"describe": True})[0]["tensors"]
            for side in sides:
                side.ask({"steps": WARM_UP_STEPS})
            for _ in range(ROUNDS_PER_START):
                for side in sides:
                    steps.setdefault(side.name, Samples()).add(median_step_us(side))

    benchmark.pedantic(one_start, rounds=STARTS, iterations=1)
    benchmark.extra_info["step_us"] = as_json(steps)
    per_parameter = {
        name: steps[name].minus(steps["alone"]).scaled(1 / tensors) for name in ("ddp", "ciranda")
    }
    report.table(
        [f"{tensors} parameters of 64", *steps],
        [
            ["step, µs", *(s.show(0) for s in steps.values())],
            [
                "above no communication, µs per parameter",
                "",
                *(s.show() for s in per_parameter.values()),
            ],
        ],
    )
    report.check(
        "overhead.per_parameter",
        f"DistributedOptimizer per parameter and step, {tensors} parameters",
        per_parameter["ciranda"],
    )
    report.data["step_us"] = as_json(steps)
    report.panels["µs per parameter"] = per_parameter


@pytest.mark.parametrize("model", ["mlp", "wide"])
def test_memory(model: str, report: Report, benchmark: Any) -> None:
    """Both sides hold parameters, optimizer state and one copy of the gradients."""
    above: dict[str, Samples] = {}
    gradient_bytes = 0

    def one_start() -> None:
        nonlocal gradient_bytes
        with running(training_sides(model, SIDES)) as sides:
            gradient_bytes = sides[0].ask({"describe": True})[0]["gradient_bytes"]
            used = {}
            for side in sides:
                side.ask({"steps": MEMORY_STEPS})
                used[side.name] = [r["pss_bytes"] for r in side.ask({"memory": True})]
            for name in ("ddp", "ciranda"):
                for ours, plain in zip(used[name], used["alone"], strict=True):
                    above.setdefault(name, Samples()).add((ours - plain) / MIB)

    benchmark.pedantic(one_start, rounds=STARTS, iterations=1)
    benchmark.extra_info["mib_above_plain"] = as_json(above)
    allowed = 0.05 * gradient_bytes / MIB + 16
    report.table(
        [f"{model}: {gradient_bytes / MIB:.1f} MiB of gradients", *above],
        [
            [
                "memory above a process that does not communicate, MiB a rank",
                *(s.show(1) for s in above.values()),
            ]
        ],
    )
    over = Samples([value - allowed for value in above["ciranda"].values])
    report.check(
        f"overhead.memory.{model}",
        f"{model}: MiB a rank, minus the {allowed:.1f} allowed",
        over,
        digits=1,
    )
    report.data[f"memory_{model}_mib"] = as_json(above)


def seconds_of(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def test_launcher_start(report: Report, benchmark: Any) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
    commands = {
        "ciranda run -np 2 true": ([*ciranda_command(), "run", "-np", "2", "true"], LAUNCHER_RUNS),
        "torchrun, the same": ([*torchrun, "--nproc-per-node=2", "true"], SLOW_LAUNCHER_RUNS),
    }
    if shutil.which("mpirun"):
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", "true"]
        commands["mpirun, the same"] = (mpirun, LAUNCHER_RUNS)
    times: dict[str, Samples] = {name: Samples() for name in commands}

    def one_round() -> None:
        for name, (command, runs) in commands.items():
            if len(times[name].values) < runs:
                times[name].add(seconds_of(command))

    benchmark.pedantic(one_round, rounds=LAUNCHER_RUNS, iterations=1)
    benchmark.extra_info["seconds"] = as_json(times)
    report.table(list(times), [[s.show() for s in times.values()]])
    report.check("overhead.launcher", "ciranda run -np 2 true", times["ciranda run -np 2 true"])
    report.data["launcher_s"] = as_json(times)
    report.panels["launcher, s"] = times
