"""Sides of a measurement: real processes that wait for commands, each started in its own way.

A Side is one library with its ranks (`ciranda run`, mpirun, plain processes). All sides of a
measurement live at once and sleep while one of them measures. A round asks each side once, so a
disturbance of the machine affects all of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from ciranda.launch.run.folders import private_folder

START_TIMEOUT_S = 120.0
REPLY_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 10.0
LOG_LINES_SHOWN = 30

Json = dict[str, Any]

# Starts processes; the arguments are a worker's arguments, an open log and the number of ranks.
Launcher = Callable[[Sequence[str], IO[bytes], int], list[subprocess.Popen[bytes]]]


def one_thread_env(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **more}


def start(argv: Sequence[str], log: IO[bytes], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # The new session lets close() reach the processes that a launcher started.
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=dict(env),
        start_new_session=True,
    )


def ciranda_command() -> list[str]:
    """Returns the command that a user types if it is installed, otherwise `python -m ciranda`."""
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
    """Starts `ciranda run` with this number of parameter servers."""

    def launch(worker: Sequence[str], log: IO[bytes], ranks: int) -> list[subprocess.Popen[bytes]]:
        return program_through_ciranda([sys.executable, *worker], log, ranks, servers)

    return launch


def through_env(**more: str) -> Launcher:
    """Starts plain processes that find each other through torch's variables, without a launcher."""

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
    """Starts `starter -np RANKS python worker`, which every MPI accepts."""

    def launch(worker: Sequence[str], log: IO[bytes], ranks: int) -> list[subprocess.Popen[bytes]]:
        return [start([*starter, "-np", str(ranks), python, *worker], log, one_thread_env(**more))]

    return launch


def through_mpirun(*options: str, mpirun: str = "mpirun", python: str = sys.executable) -> Launcher:
    """Starts Open MPI's mpirun."""
    return through_starter([mpirun, "--allow-run-as-root", "--oversubscribe", *options], python)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SideError(RuntimeError):
    """A side did not start or did not answer; the message has the end of its log."""


class Side:
    """One library's ranks, which wait for commands (control.py). `worker` is Python's arguments."""

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        worker: Sequence[str],
        ranks: int,
    ) -> None:
        self.name = name
        self._ranks = ranks
        self._stack = contextlib.ExitStack()
        folder = self._stack.enter_context(private_folder())  # its path is short, for a socket
        self._log_path = Path(folder, "log")
        control = str(Path(folder, "control"))
        self._connections: dict[int, tuple[socket.socket, IO[str]]] = {}
        with socket.socket(socket.AF_UNIX) as listener, self._log_path.open("wb") as log:
            listener.bind(control)
            listener.listen(ranks)
            self._processes = launcher([*worker, "--control", control], log, ranks)
            try:
                self._accept_all(listener)
            except BaseException:
                self.close()
                raise

    def _accept_all(self, listener: socket.socket) -> None:
        listener.settimeout(0.2)  # seconds until a dead rank is noticed
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
        """Sends the command to all ranks, then waits; returns every rank's reply, by rank."""
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
        self._stack.close()

    def _error(self, what: str) -> SideError:
        lines = self._log_path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        return SideError("\n".join([f"{self.name} {what}. Its last lines:", *lines]))


SideMaker = Callable[[], Side]


@contextlib.contextmanager
def running(makers: Sequence[SideMaker]) -> Iterator[list[Side]]:
    """Starts the sides at the same time, and ends all of them in any case."""
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
