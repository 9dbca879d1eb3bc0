"""The backends and peers that this build and this machine have, and how each starts.

Imports torch only to look for GPUs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ciranda import _build
from ciranda.bench.commands import MEMCPY
from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.environment import count_cores
from ciranda.measure import hosts, sides
from ciranda.measure.machine import first_line_of
from ciranda.measure.sides import Launcher, Side, SideError
from ciranda.netns.namespace import obstacle
from ciranda.netns.network import Network

BACKENDS = {"cpu": ("shm", "ring", "gloo"), "cuda": ("nccl",)}
PEERS = ("c10d", "mpi", MEMCPY)


@dataclass(frozen=True)
class SideHere:
    name: str
    title: str
    own: bool
    launcher: Launcher
    library: str
    ranks: int
    device: str

    def start(self) -> Side:
        worker = ["-m", "ciranda.bench.worker"]
        worker += ["--library", self.library, "--device", self.device]
        return Side(self.name, self.launcher, worker, self.ranks)


@dataclass(frozen=True)
class Absent:
    name: str
    why: str


class Hosts:
    """Two hosts, which are namespaces of this machine, and the ports in use there."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network = network
        self._folder = folder
        self._ports = itertools.count(hosts.PORT)

    def through_ciranda(self, variables: Mapping[str, str]) -> Launcher:
        return hosts.ciranda_through(self._network, self._ports, self._folder, variables)

    def through_torch(self) -> Launcher:
        return hosts.torch_through(self._network, self._ports)


@contextlib.contextmanager
def two_hosts() -> Iterator[Hosts]:
    if why := obstacle():
        raise LaunchError(f"--two-hosts: the hosts are namespaces of this machine, but {why}")
    with tempfile.TemporaryDirectory(prefix="ciranda-bench-") as name:
        folder = Path(name)
        with Network(2, folder / "net", addresses=("ipv4",)) as network:
            yield Hosts(network, folder)


def on_backend(name: str, among: Hosts | None = None) -> Launcher:
    """Starts `ciranda run` with this backend, whatever the environment says."""
    if among is not None:
        trusted = {"CIRANDA_TRUSTED_NETWORK": "1"} if name == "gloo" else {}
        return among.through_ciranda({"CIRANDA_CPU_OPERATIONS": name, **trusted})
    kind = "--gpu-operations" if name == "nccl" else "--cpu-operations"

    def launch(worker: Sequence[str], log: IO[bytes], ranks: int) -> list[subprocess.Popen[bytes]]:
        # The data stay on this machine, so a warning that Gloo and NCCL trust the network is not
        # needed.
        options = ["-np", str(ranks), kind, name, "--trusted-network"]
        command = [*sides.ciranda_command(), "run", *options, sys.executable, *worker]
        return [sides.start(command, log, sides.one_thread_env())]

    return launch


def _why_no_backend(name: str, among: Hosts | None) -> str | None:
    if name == "ring" and among is None:
        return "joins hosts, and this is one host; --two-hosts makes two of it"
    if name == "shm" and among is not None:
        return "is within a host"
    if name not in ("shm", "ring", *_build.CPU_BACKENDS, *_build.GPU_BACKENDS):
        return "this build has none; `ciranda run --check` says what to install"
    return None


def _why_no_peer(name: str, device: str, among: Hosts | None) -> str | None:
    if name != "mpi":
        return None
    if among is not None:
        return "is compared on one host only"
    if device != "cpu":
        return "is compared on the CPU only"
    if importlib.util.find_spec("mpi4py") is None:
        return "needs mpi4py (pip install mpi4py)"
    if shutil.which("mpirun") is None:
        return "needs an MPI with mpirun (apt-get install openmpi-bin)"
    return None


def _through_mpi(ranks: int) -> Launcher:
    if "Open MPI" not in first_line_of(["mpirun", "--version"]):
        return sides.through_starter(["mpirun"])
    return sides.through_mpirun("--bind-to", "core" if ranks <= count_cores() else "none")


def _backend(name: str, ranks: int, device: str, among: Hosts | None) -> SideHere:
    launcher = on_backend(name, among)
    return SideHere(name, f"ciranda, {name}", True, launcher, "ciranda", ranks, device)


def _peer(name: str, ranks: int, device: str, among: Hosts | None) -> SideHere:
    if name == MEMCPY:
        title = "memcpy: one process copies as many bytes"
        return SideHere(name, title, False, sides.through_env(), name, 1, device)
    if name == "mpi":
        title = f"mpi: mpi4py, {first_line_of(['mpirun', '--version'])}"
        return SideHere(name, title, False, _through_mpi(ranks), name, ranks, device)
    title = f"c10d: torch.distributed over {'NCCL' if device == 'cuda' else 'Gloo'}"
    launcher = sides.through_env() if among is None else among.through_torch()
    return SideHere(name, title, False, launcher, name, ranks, device)


def find(
    backends: Sequence[str] | None,
    peers: Sequence[str] | None,
    ranks: int,
    device: str,
    among: Hosts | None = None,
) -> tuple[list[SideHere], list[Absent]]:
    """Returns the sides asked for (None: all that exist) on this host or among several hosts.

    Raises LaunchError if a side is asked for by name and is absent.
    """
    here: list[SideHere] = []
    absent: list[Absent] = []
    for name in BACKENDS[device] if backends is None else backends:
        if why := _why_no_backend(name, among):
            _note(absent, Absent(name, why), backends is not None, "--backends")
        else:
            here.append(_backend(name, ranks, device, among))
    for name in PEERS if peers is None else peers:
        if why := _why_no_peer(name, device, among):
            _note(absent, Absent(name, why), peers is not None, "--peers")
        else:
            here.append(_peer(name, ranks, device, among))
    if not here:
        raise LaunchError("there is nothing to measure; give --backends or --peers")
    return here, absent


def _note(absent: list[Absent], side: Absent, named: bool, option: str) -> None:
    if named:
        raise LaunchError(f"{option} {side.name}: {side.why}")
    absent.append(side)


def check_gpus(ranks: int) -> None:
    import torch

    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found == 0:
        raise LaunchError("--device cuda: torch finds no GPU here; measure with --device cpu")
    if found < ranks:
        raise LaunchError(
            f"--device cuda: {ranks} ranks need a GPU each, and this host has {found}"
        )


Started = tuple[SideHere, Side]


@contextlib.contextmanager
def running(
    here: Sequence[SideHere], named: Sequence[str]
) -> Iterator[tuple[list[Started], list[Absent]]]:
    """Starts all sides at the same time; yields them and the peers that did not start.

    Raises the error of a side that did not start if it is a backend of ciranda or in `named`.
    """
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=len(here)))
        futures: list[Future[Side]] = [pool.submit(each.start) for each in here]
        errors = [future.exception() for future in futures]
        for future, error in zip(futures, errors, strict=True):
            if error is None:
                stack.callback(future.result().close)
        started: list[Started] = []
        absent: list[Absent] = []
        for each, future, error in zip(here, futures, errors, strict=True):
            if error is None:
                started.append((each, future.result()))
            elif isinstance(error, SideError) and not each.own and each.name not in named:
                lines = str(error).splitlines()
                absent.append(Absent(each.name, f"did not start: {lines[-1].strip()}"))
            else:
                raise error
        yield started, absent
