"""What calls of the Python API take: small reductions, batch norms, a timeline, the import."""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.common import STARTS, Samples, Side, as_json, running, through_ciranda
from benchmarks.report import Report

ROUNDS_PER_START = 9
IMPORT_RUNS = 9
# Calls that one measurement makes without a pause.
ITERATIONS = {
    "allreduce_, named": 3000,
    "allreduce_, unnamed": 3000,
    "broadcast_parameters": 50,
    "Average of 4 MiB": 30,
    "Adasum of 4 MiB": 30,
    "BatchNorm2d, forward": 200,
    "SyncBatchNorm, forward": 200,
    "BatchNorm2d, both": 100,
    "SyncBatchNorm, both": 100,
    "step": 500,
    "step, once more": 500,  # how far two of the same are apart
    "step, traced": 500,
}


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    with Report("api", "Calls of the Python API, 2 ranks").kept() as filled:
        yield filled


def median_us(side: Side, case: str) -> float:
    """Of the slower rank."""
    command = {"case": case, "iterations": ITERATIONS[case], "warm_up": 20}
    return max(statistics.median(reply["seconds"]) for reply in side.ask(command)) * 1e6


def test_calls(report: Report, benchmark: Any) -> None:
    times: dict[str, Samples] = {case: Samples() for case in ITERATIONS}

    def one_start() -> None:
        with running([functools.partial(Side, "ciranda", through_ciranda, "api.py")]) as [side]:
            for turn in range(ROUNDS_PER_START):
                # Either of two that are compared comes first as often as the other.
                for case in ITERATIONS if turn % 2 == 0 else reversed(ITERATIONS):
                    times[case].add(median_us(side, case))

    benchmark.pedantic(one_start, rounds=STARTS, iterations=1)
    benchmark.extra_info["call_us"] = as_json(times)
    report.table(["a call", "µs"], [[case, each.show(1)] for case, each in times.items()])
    traced = times["step, traced"].over(times["step"])
    named, unnamed = times["allreduce_, named"], times["allreduce_, unnamed"]
    report.check("api.allreduce", "allreduce_ of 4 bytes", named)
    report.check("api.unnamed", "the same without a name, beside it", unnamed.over(named))
    report.check(
        "api.broadcast",
        "broadcast_parameters of 400 tensors",
        times["broadcast_parameters"].scaled(1e-3),
    )
    report.check(
        "api.timeline",
        "an MNIST-sized step with a timeline, beside one without",
        traced,
        digits=3,
    )
    again = times["step, once more"].over(times["step"])
    report.table(["beside a step", ""], [["once more", again.show(3)], ["traced", traced.show(3)]])
    report.data["call_us"] = as_json(times)


def test_import(report: Report, benchmark: Any) -> None:
    """In processes of their own, with torch's files in the page cache."""
    times = {"torch": Samples(), "ciranda.torch": Samples()}
    # In one process: two would differ by what importing torch takes, which varies by more.
    both = (
        "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); "
        "import ciranda.torch; c = time.perf_counter(); print(b - a, c - b)"
    )

    def one_round() -> None:
        text = subprocess.run([sys.executable, "-c", both], check=True, capture_output=True).stdout
        torch_s, ours_s = (float(word) for word in text.split())
        times["torch"].add(torch_s * 1e3)
        times["ciranda.torch"].add(ours_s * 1e3)

    benchmark.pedantic(one_round, rounds=IMPORT_RUNS, iterations=1, warmup_rounds=1)
    benchmark.extra_info["import_ms"] = as_json(times)
    report.table(["import", "ms"], [[name, each.show(0)] for name, each in times.items()])
    report.check("api.import", "import ciranda.torch after import torch", times["ciranda.torch"], 0)
    report.data["import_ms"] = as_json(times)
