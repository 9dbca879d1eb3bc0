"""What every benchmark here needs beside `ciranda.measure`: workers, peers, the machine."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ciranda.measure import machine as measured_machine
from ciranda.measure import sides
from ciranda.measure.machine import first_line_of as first_line_of
from ciranda.measure.machine import stolen_s as stolen_s
from ciranda.measure.machine import version_of
from ciranda.measure.samples import Samples as Samples
from ciranda.measure.samples import as_json as as_json
from ciranda.measure.sides import Json as Json
from ciranda.measure.sides import Launcher as Launcher
from ciranda.measure.sides import SideMaker as SideMaker
from ciranda.measure.sides import ciranda_command as ciranda_command
from ciranda.measure.sides import one_thread_env as one_thread_env
from ciranda.measure.sides import program_through_ciranda as program_through_ciranda
from ciranda.measure.sides import running as running
from ciranda.measure.sides import start as start
from ciranda.measure.sides import through_ciranda as through_ciranda
from ciranda.measure.sides import through_env as through_env
from ciranda.measure.sides import through_mpirun as through_mpirun
from ciranda.measure.sides import through_servers as through_servers
from ciranda.measure.sides import through_starter as through_starter

RANKS = 2
WORKERS = Path(__file__).with_name("workers")
BUILD = Path(__file__).resolve().parents[1] / "build"
# Each library's processes are started this often, and measured this often each time: memory lies
# elsewhere after another start. Together at least five samples.
STARTS = 2
ROUNDS_PER_START = 4


class Side(sides.Side):
    """One library's ranks; `script` is one of workers/."""

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        script: str,
        arguments: Sequence[str] = (),
        ranks: int = RANKS,
    ) -> None:
        super().__init__(name, launcher, [str(WORKERS / script), *arguments], ranks)


def training_launcher(name: str, servers: int) -> Launcher:
    if name.startswith("ps"):
        return through_servers(servers)
    return through_ciranda if name.startswith(("ciranda", "lockstep")) else through_env()


def training_sides(
    model: str,
    names: Sequence[str],
    optimizer: str = "adam",
    ranks: int = RANKS,
    servers: int = 1,
) -> list[SideMaker]:
    """Ways of workers/train.py, in this order."""
    return [
        functools.partial(
            Side,
            name,
            training_launcher(name, servers),
            "train.py",
            ["--side", name, "--model", model, "--optimizer", optimizer],
            1 if name == "one" else ranks,
        )
        for name in names
    ]


def missing_peer(module: str, program: str | None = None) -> bool:
    """Whether a peer that is only compared with, mpi4py say, is not on this machine."""
    return importlib.util.find_spec(module) is None or (
        program is not None and shutil.which(program) is None
    )


@dataclass(frozen=True)
class OwnEnvironment:
    """A peer with a virtual environment of its own, because two MPIs do not share one."""

    name: str

    def program(self, name: str) -> str:
        return str(BUILD / "peers" / self.name / "bin" / name)

    @property
    def python(self) -> str:
        return self.program("python")

    @property
    def packages(self) -> str:
        """For PYTHONPATH, where the peer is a package that is imported beside torch."""
        return str(next((BUILD / "peers" / self.name / "lib").glob("python*/site-packages")))

    @property
    def missing(self) -> bool:
        # tools/setup.sh writes it once all is installed.
        return not (BUILD / "peers" / self.name / ".installed").exists()


def built(program: str) -> Path | None:
    """A program of the preset `bench`; None where `make bench` did not build it."""
    return min((BUILD / "bench").rglob(program), default=None)


# --- machine --------------------------------------------------------------------------------------


def mpi_version(python: str) -> str:
    """Of the MPI that this interpreter's mpi4py loads."""
    program = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().split(",")[0])
"""
    return first_line_of([python, "-c", program])


def core_round_trip_ns() -> int | None:
    """A cache line from one core to the other and back; None where `make bench` did not build it.

    On virtual machines it changes by a factor of ten as the host moves the cores, and all figures
    of two ranks with it.
    """
    bench = built("core_to_core_bench")
    if bench is None or len(os.sched_getaffinity(0)) < 2:
        return None
    command = [str(bench), "--benchmark_format=json", "--benchmark_min_time=0.2"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return round(json.loads(answer.stdout)["benchmarks"][0]["real_time"])


def machine() -> Json:
    """What a reader needs to judge the figures, the load by others included."""
    return {
        **measured_machine.machine(),
        "mpi4py": version_of("mpi4py"),
        "core_round_trip_ns_before": core_round_trip_ns(),
    }
