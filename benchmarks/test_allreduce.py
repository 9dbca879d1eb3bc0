"""All-reduce of float32 over two ranks, called from Python, against c10d's Gloo and mpi4py on three
MPIs; ours called from C++ too."""

from __future__ import annotations

import functools
import statistics
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from benchmarks.common import (
    ROUNDS_PER_START,
    STARTS,
    Json,
    Launcher,
    OwnEnvironment,
    Samples,
    Side,
    SideMaker,
    as_json,
    built,
    missing_peer,
    mpi_version,
    program_through_ciranda,
    running,
    through_ciranda,
    through_env,
    through_mpirun,
    through_starter,
)
from benchmarks.report import Report

KIB, MIB = 1024, 1024 * 1024
# Calls a round: long enough for a median, short enough for an alternation.
ITERATIONS = {
    4: 2000,
    4 * KIB: 1000,
    16 * KIB: 1000,
    256 * KIB: 200,
    MIB: 100,
    16 * MIB: 12,
    64 * MIB: 6,
}
ARENA_BYTES = 64 * MIB
ARENA_ITERATIONS = 10
# A peer's settings differ in which size they favour; each size is compared with the best.
C10D = {"c10d": {}, "c10d lo x4": {"GLOO_SOCKET_IFNAME": "lo,lo,lo,lo"}}


@dataclass(frozen=True)
class Mpi:
    """One MPI of this machine: the interpreter whose mpi4py loads it, its sides."""

    python: str
    missing: bool
    sides: dict[str, Launcher]


BOUND = ("--bind-to", "core")
OPEN_MPI_5 = OwnEnvironment("openmpi5")
INTEL_MPI = OwnEnvironment("intelmpi")
through_mpirun_5 = functools.partial(
    through_mpirun, mpirun=OPEN_MPI_5.program("mpirun"), python=OPEN_MPI_5.python
)
through_hydra = functools.partial(
    through_starter, [INTEL_MPI.program("mpiexec.hydra")], python=INTEL_MPI.python
)
MPIS = {
    "open_mpi_4": Mpi(
        sys.executable,
        missing_peer("mpi4py", "mpirun"),
        {
            "Open MPI 4": through_mpirun(*BOUND),
            "Open MPI 4, two copies": through_mpirun(
                *BOUND, "--mca", "btl_vader_single_copy_mechanism", "none"
            ),
        },
    ),
    "open_mpi_5": Mpi(
        OPEN_MPI_5.python,
        OPEN_MPI_5.missing,
        {
            "Open MPI 5": through_mpirun_5(*BOUND),
            "Open MPI 5, two copies": through_mpirun_5(*BOUND, "--mca", "smsc", "^cma"),
        },
    ),
    "intel_mpi": Mpi(
        INTEL_MPI.python, INTEL_MPI.missing, {"Intel MPI": through_hydra(I_MPI_FABRICS="shm")}
    ),
}
MPI_SIDES = {name: launcher for mpi in MPIS.values() for name, launcher in mpi.sides.items()}
IN_CPP, CPP_WORKER = "ciranda, C++", "allreduce_bench"
LOOP = "loop"


def size_name(size: int) -> str:
    if size < KIB:
        return f"{size} B"
    return f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"


def make_sides(shared: str) -> list[SideMaker]:
    make = functools.partial
    sides: list[SideMaker] = [make(Side, "ciranda", through_ciranda, "allreduce_ciranda.py")]
    if program := built(CPP_WORKER):
        sides.append(make(Side, IN_CPP, program_through_ciranda, str(program)))
    for name, env in C10D.items():
        sides.append(make(Side, name, through_env(**env), "allreduce_c10d.py"))
    for mpi in MPIS.values():
        if not mpi.missing:
            for name, launcher in mpi.sides.items():
                sides.append(make(Side, name, launcher, "allreduce_mpi4py.py"))
    sides.append(make(Side, LOOP, through_env(), "shm_loop.py", ["--shared", shared]))
    return sides


def median_us(side: Side, command: Json) -> float:
    """Of the slower rank: the call is over when it is over everywhere."""
    replies = side.ask({**command, "warm_up": max(2, command["iterations"] // 10)})
    return max(statistics.median(reply["seconds"]) for reply in replies) * 1e6


def one_start(user: dict[int, dict[str, Samples]], arena: dict[str, Samples]) -> None:
    with (
        tempfile.NamedTemporaryFile(dir="/dev/shm") as shared,
        running(make_sides(shared.name)) as sides,
    ):
        for _ in range(ROUNDS_PER_START):
            one_round(sides, user, arena)


def one_round(
    sides: list[Side], user: dict[int, dict[str, Samples]], arena: dict[str, Samples]
) -> None:
    for size, iterations in ITERATIONS.items():
        for side in sides:
            if side.name != LOOP:
                us = median_us(side, {"bytes": size, "iterations": iterations})
                user[size].setdefault(side.name, Samples()).add(us)
    for side in sides:
        if side.name in ("ciranda", LOOP):
            command = {"bytes": ARENA_BYTES, "iterations": ARENA_ITERATIONS, "arena": True}
            arena.setdefault(side.name, Samples()).add(median_us(side, command))


def best(samples: dict[str, Samples], names: dict[str, Any]) -> Samples | None:
    present = [samples[name] for name in names if name in samples]
    return min(present, key=lambda s: s.median) if present else None


def test_allreduce(benchmark: Any) -> None:
    report = Report("allreduce", "All-reduce of float32, 2 ranks of one host, µs")
    absent = [] if built(CPP_WORKER) else [IN_CPP]
    for name, mpi in MPIS.items():
        report.machine[name] = "absent" if mpi.missing else mpi_version(mpi.python)
        absent += mpi.sides if mpi.missing else []
    if absent:
        report.sections.append(f"Absent, see `make bench`: {'; '.join(absent)}")
    user: dict[int, dict[str, Samples]] = {size: {} for size in ITERATIONS}
    arena: dict[str, Samples] = {}
    # pytest-benchmark's own figure is the time of a whole start with its rounds; ours are in
    # extra_info and in the report.
    benchmark.pedantic(one_start, (user, arena), rounds=STARTS, iterations=1)

    sides = list(user[MIB])
    report.table(
        ["size", *sides],
        [[size_name(n), *(user[n][side].show(1) for side in sides)] for n in ITERATIONS],
    )
    report.table(
        ["64 MiB in shared memory", *arena],
        [
            [
                "a bucket of the arena; the loop over shared memory",
                *(s.show(0) for s in arena.values()),
            ]
        ],
    )
    add_checks(report, user, arena)
    report.data["us"] = {size_name(n): as_json(user[n]) for n in ITERATIONS}
    report.data["arena_us"] = as_json(arena)
    benchmark.extra_info["us"] = report.data["us"]
    report.panels = {size_name(n): user[n] for n in ITERATIONS}
    report.draw("µs", log=True)
    report.save()


def add_checks(
    report: Report, user: dict[int, dict[str, Samples]], arena: dict[str, Samples]
) -> None:
    report.check("allreduce.4B", "4 B", user[4]["ciranda"])
    if mpi := best(user[4], MPI_SIDES):
        report.check(
            "allreduce.4B.over_mpi", "4 B, minus the best MPI", user[4]["ciranda"].minus(mpi)
        )
    for size in (MIB, 16 * MIB, 64 * MIB):
        name, ours = size_name(size), user[size]["ciranda"]
        key = f"allreduce.{name.replace(' ', '')}"
        peers = {
            "c10d": (best(user[size], C10D), "c10d Gloo"),
            "mpi": (best(user[size], MPI_SIDES), "the best MPI"),
        }
        for peer, (theirs, title) in peers.items():
            if theirs:
                report.check(f"{key}.{peer}", f"{name}, speed ÷ {title}'s", theirs.over(ours))
    ratio = arena["ciranda"].over(arena[LOOP])
    report.check("allreduce.arena", "64 MiB in the arena, time ÷ the loop's", ratio)
