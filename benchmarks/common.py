"""What every benchmark here needs: sides that are real processes, rounds that alternate between
them, a record of the machine.

A Side is one library with its two ranks, started its own way (`ciranda run`, mpirun, plain
processes). All sides of a benchmark live at once and sleep while one of them measures, and a round
asks each of them once; so what the machine does at that minute happens to all of them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

RANKS = 2
WORKERS = Path(__file__).with_name("workers")
BUILD = Path(__file__).resolve().parents[1] / "build"
# Each library's processes are started this often, and measured this often each time: memory lies
# elsewhere after another start. Together at least five samples.
STARTS = 2
ROUNDS_PER_START = 4
START_TIMEOUT_S = 120.0
REPLY_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 10.0
LOG_LINES_SHOWN = 30

Json = dict[str, Any]


# --- sides ----------------------------------------------------------------------------------------


# From a worker's arguments, an open log and a number of ranks to the started processes.
Launcher = Callable[[Sequence[str], IO[bytes], int], list[subprocess.Popen[bytes]]]


def one_thread_env(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **more}


def start(argv: Sequence[str], log: IO[bytes], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # A session of its own, so that close() reaches what a launcher started too.
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=dict(env),
        start_new_session=True,
    )


def ciranda_command() -> list[str]:
    """What the user types, where it is installed."""
    script = Path(sys.executable).with_name("ciranda")
    return [str(script)] if script.exists() else [sys.executable, "-m", "ciranda"]


def through_ciranda(
    worker: Sequence[str], log: IO[bytes], ranks: int
) -> list[subprocess.Popen[bytes]]:
    return program_through_ciranda([sys.executable, *worker], log, ranks)


def program_through_ciranda(
    program: Sequence[str], log: IO[bytes], ranks: int, servers: int = 0, coordinator: bool = False
) -> list[subprocess.Popen[bytes]]:
    shape = ["-np", str(ranks), *(["--ps", str(servers)] if servers else [])]
    shape += ["--coordinator"] if coordinator else []
    return [start([*ciranda_command(), "run", *shape, *program], log, one_thread_env())]


def through_servers(servers: int) -> Launcher:
    """`ciranda run` with so many parameter servers."""

    def launch(worker: Sequence[str], log: IO[bytes], ranks: int) -> list[subprocess.Popen[bytes]]:
        return program_through_ciranda([sys.executable, *worker], log, ranks, servers)

    return launch


def through_env(**more: str) -> Launcher:
    """Plain processes that find each other through torch's variables; nothing is in between."""

    def launch(worker: Sequence[str], log: IO[bytes], ranks: int) -> list[subprocess.Popen[bytes]]:
        address = {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        return [
            start([sys.executable, *worker], log, one_thread_env(RANK=str(rank), **address, **more))
            for rank in range(ranks)
        ]

    return launch


def through_starter(starter: Sequence[str], python: str = sys.executable, **more: str) -> Launcher:
    """`starter -np RANKS python worker`, as every MPI spells it."""

    def launch(worker: Sequence[str], log: IO[bytes], ranks: int) -> list[subprocess.Popen[bytes]]:
        return [start([*starter, "-np", str(ranks), python, *worker], log, one_thread_env(**more))]

    return launch


def through_mpirun(*options: str, mpirun: str = "mpirun", python: str = sys.executable) -> Launcher:
    """Open MPI's."""
    return through_starter([mpirun, "--allow-run-as-root", "--oversubscribe", *options], python)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SideError(RuntimeError):
    """A side did not start or did not answer; carries the end of its log."""


class Side:
    """One library's ranks, waiting for commands (see workers/control.py)."""

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        script: str,
        arguments: Sequence[str] = (),
        ranks: int = RANKS,
    ) -> None:
        self.name = name
        self._ranks = ranks
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        self._log_path = Path(self._folder.name, "log")
        control = str(Path(self._folder.name, "control"))
        self._connections: dict[int, tuple[socket.socket, IO[str]]] = {}
        with socket.socket(socket.AF_UNIX) as listener, self._log_path.open("wb") as log:
            listener.bind(control)
            listener.listen(ranks)
            worker = [str(WORKERS / script), *arguments, "--control", control]
            self._processes = launcher(worker, log, ranks)
            try:
                self._accept_all(listener)
            except BaseException:
                self.close()
                raise

    def _accept_all(self, listener: socket.socket) -> None:
        listener.settimeout(0.2)  # how soon a rank that died is noticed
        deadline = time.monotonic() + START_TIMEOUT_S
        while len(self._connections) < self._ranks:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if any(p.poll() is not None for p in self._processes):
                    raise self._error("ended while starting") from None
                if time.monotonic() > deadline:
                    raise self._error(f"did not start in {START_TIMEOUT_S:.0f} s") from None
                continue
            connection.settimeout(REPLY_TIMEOUT_S)
            lines = connection.makefile("rw", encoding="utf-8")
            self._connections[json.loads(lines.readline())["rank"]] = (connection, lines)

    def ask(self, command: Json) -> list[Json]:
        """Every rank's reply, by rank. All get the command before any is waited for."""
        text = json.dumps(command)
        try:
            for _, lines in self._connections.values():
                print(text, file=lines, flush=True)
            replies = {r: lines.readline() for r, (_, lines) in self._connections.items()}
        except OSError as error:
            raise self._error(f"did not answer {text}: {error}") from error
        if not all(replies.values()):
            raise self._error(f"ended during {text}")
        return [json.loads(replies[rank]) for rank in sorted(replies)]

    def close(self) -> None:
        for connection, lines in self._connections.values():
            with contextlib.suppress(OSError):
                lines.close()
            connection.close()
        self._connections = {}
        for process in self._processes:
            try:
                process.wait(EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._folder.cleanup()

    def _error(self, what: str) -> SideError:
        lines = self._log_path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        return SideError("\n".join([f"{self.name} {what}. Its last lines:", *lines]))


SideMaker = Callable[[], Side]


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


@contextlib.contextmanager
def running(makers: Sequence[SideMaker]) -> Iterator[list[Side]]:
    """Starts the sides at the same time and ends them all, whatever happens."""
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=len(makers)))
        futures = [pool.submit(make) for make in makers]
        failures = [f.exception() for f in futures]
        for future, failure in zip(futures, failures, strict=True):
            if failure is None:
                stack.callback(future.result().close)
        for failure in failures:
            if failure is not None:
                raise failure
        yield [future.result() for future in futures]


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


# --- samples --------------------------------------------------------------------------------------


@dataclass
class Samples:
    """One figure of one side, once a round."""

    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.values.append(value)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def over(self, other: Samples) -> Samples:
        """Round by round, because a round's two sides met the same machine."""
        return Samples([a / b for a, b in zip(self.values, other.values, strict=True)])

    def minus(self, other: Samples) -> Samples:
        return Samples([a - b for a, b in zip(self.values, other.values, strict=True)])

    def at(self, rounds: Sequence[int]) -> Samples:
        return Samples([self.values[index] for index in rounds])

    def scaled(self, factor: float) -> Samples:
        return Samples([value * factor for value in self.values])

    def show(self, digits: int = 2) -> str:
        """`median (min-max)`."""
        low, high = f"{self.low:,.{digits}f}", f"{self.high:,.{digits}f}"
        return f"{self.median:,.{digits}f} ({low}-{high})"


def as_json(samples: Mapping[Any, Samples]) -> Json:
    return {str(key): s.values for key, s in samples.items()}


# --- machine --------------------------------------------------------------------------------------


def version_of(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def first_line_of(command: Sequence[str]) -> str:
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return "absent"
    return (text.splitlines() or ["unknown"])[0]


def mpi_version(python: str) -> str:
    """Of the MPI that this interpreter's mpi4py loads."""
    program = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().split(",")[0])
"""
    return first_line_of([python, "-c", program])


def cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


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


def stolen_s() -> float:
    """For how long this virtual machine's cores were kept for others, since boot; 0 where nobody
    says."""
    with contextlib.suppress(OSError, IndexError):
        ticks = int(Path("/proc/stat").read_text().splitlines()[0].split()[8])
        return ticks / os.sysconf("SC_CLK_TCK")
    return 0.0


def machine() -> Json:
    """What a reader needs to judge the figures, the load by others included."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version_of("torch"),
        "ciranda": version_of("ciranda"),
        "mpi4py": version_of("mpi4py"),
        "load_average_before": round(os.getloadavg()[0], 2),
        "core_round_trip_ns_before": core_round_trip_ns(),
        "utc": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
    }
