"""Judges the all-reduce: its results, and its speed for this machine. Pure.

The bounds are wide. They find a wrong network, a throttled container or busy cores, not a few per
cent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ciranda.doctor.job import LARGE_BYTES
from ciranda.doctor.lines import Line, Status, Verdict, fail, line, ok, warn

_LATENCY_MAX_S = 200e-6  # on one host; 2 to 5 µs are usual
_COPY_PARTS = 16  # divides a copy's bandwidth; an all-reduce in memory makes 1/2 to 1/4 of it
_RTT_TIMES = 10  # for each doubling of hosts, which needs one round trip
_RTT_SLACK_S = 500e-6
_WIRE_PARTS = 4
_SLOW_JOB_S = 0.5  # seconds that one large all-reduce may take
_LARGE_BYTES_MIN = 1024 * 1024


@dataclass(frozen=True)
class Expected:
    """Figures that the machine should reach, apart from the copy that the ranks measure."""

    host_count: int = 1
    takes_turns: bool = False  # more ranks than cores on some host
    busy: bool = False
    rtt_s: float | None = None  # of the slowest way between hosts
    bytes_per_s: float | None = None


def large_bytes(bytes_per_s: float | None) -> int:
    """Returns how many bytes to reduce, so that a slow network does not take minutes."""
    if bytes_per_s is None:
        return LARGE_BYTES
    wanted = int(bytes_per_s * _SLOW_JOB_S)
    return 1 << (max(_LARGE_BYTES_MIN, min(LARGE_BYTES, wanted)).bit_length() - 1)


def job_lines(job: Mapping[str, Any], expected: Expected, rerun: str) -> list[Line]:
    """Judges `job`, the result of run_job(); `rerun` is the command that repeats it."""
    if "ranks" not in job:
        return [line("allreduce", "", _not_ended(job, rerun))]
    ranks: Sequence[Mapping[str, Any]] = job["ranks"]
    wrong = [str(each["rank"]) for each in ranks if not each["verified"]]
    if wrong:
        verdict = fail(
            f"wrong sums on rank {', '.join(wrong)}",
            "Test the memory and the network of these hosts, and report it if they are well: "
            f"{rerun}",
        )
        return [line("allreduce", "", verdict)]
    right = f"{len(ranks)} ranks, right to the bit on each"
    figures = job_figures(job)
    return [
        line("allreduce", "", ok(right)),
        line("latency", "", _latency(figures, expected)),
        line("bandwidth", "", _bandwidth(figures, expected)),
    ]


def skipped_job(lines: Sequence[Line]) -> list[Line]:
    """Returns the line in place of a job that failed lines make impossible."""
    failed = dict.fromkeys(
        f"{each.check.name} {each.host}".strip()
        for each in lines
        if each.verdict.status is Status.FAIL
    )
    verdict = Verdict(Status.SKIP, f"not run, for these have failed: {', '.join(failed)}")
    return [line("allreduce", "", verdict)]


def job_figures(job: Mapping[str, Any]) -> dict[str, float]:
    """Returns the figures of the slowest rank, because the other ranks wait for it."""
    ranks = job.get("ranks", [])
    if not ranks:
        return {}
    size_bytes = ranks[0]["large_bytes"]
    return {
        "ranks": len(ranks),
        "latency_s": max(each["latency_s"] for each in ranks),
        "large_bytes": size_bytes,
        "bytes_per_s": size_bytes / max(each["allreduce_s"] for each in ranks),
        "copy_bytes_per_s": size_bytes / max(each["copy_s"] for each in ranks),
    }


def _not_ended(job: Mapping[str, Any], rerun: str) -> Verdict:
    said = [each.lstrip("│╭╰─ ").strip() for each in str(job["said"]).splitlines()]
    causes = [each for each in said if each.startswith(("culprit", "cause"))]
    words = [" ".join(each.split()) for each in causes] or [each for each in said if each][-1:]
    return fail(
        f"the job ended with exit code {job['exit_code']}: {'; '.join(words) or 'it said nothing'}",
        f"Look at what its ranks say: {rerun}",
    )


def _latency(figures: Mapping[str, float], expected: Expected) -> Verdict:
    latency_s = figures["latency_s"]
    words = f"{latency_s * 1e6:,.1f} µs for 4 bytes"
    if expected.rtt_s is None:
        should_s, words = _LATENCY_MAX_S, f"{words} (below {_LATENCY_MAX_S * 1e6:.0f} on one host)"
    else:
        doublings = max(1, math.ceil(math.log2(expected.host_count)))
        should_s = expected.rtt_s * _RTT_TIMES * doublings + _RTT_SLACK_S
        words += f"; a round trip between hosts takes {expected.rtt_s * 1e6:,.0f}"
    return _judge(latency_s <= should_s, words, expected)


def _bandwidth(figures: Mapping[str, float], expected: Expected) -> Verdict:
    found, copy = figures["bytes_per_s"], figures["copy_bytes_per_s"]
    words = f"{found / 1e9:.2f} GB/s for {figures['large_bytes'] / 2**20:.0f} MiB"
    should = copy / _COPY_PARTS
    beside = f"all ranks copying memory at once: {copy / 1e9:.2f} each"
    if expected.bytes_per_s is not None:
        # A ring of hosts moves 2 (n - 1) / n of the data over each way.
        ring = 2 * (expected.host_count - 1) / expected.host_count
        should = min(should, expected.bytes_per_s / ring / _WIRE_PARTS)
        beside = (
            f"TCP between hosts: {expected.bytes_per_s / 1e9:.2f}, of which all-reduce can make "
            f"{expected.bytes_per_s / ring / 1e9:.2f}"
        )
    return _judge(found >= should, f"{words}; {beside}", expected)


def _judge(is_well: bool, words: str, expected: Expected) -> Verdict:
    if is_well:
        return ok(words)
    if expected.busy:
        mend = "Measure again when other programs have ended, for this machine is busy: top"
    elif expected.takes_turns:
        mend = "Name at most as many slots as cores, for ranks that outnumber them take turns."
    elif expected.host_count > 1:
        mend = "See which network the ranks take, and name the fast one with --nic: ip route"
    else:
        mend = (
            "See whether the container's CPU quota, its cores or the memory are throttled: "
            "cat /sys/fs/cgroup/cpu.stat"
        )
    return warn(f"{words}: far below what this machine should give", mend)
