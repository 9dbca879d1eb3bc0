"""One run: starts its processes, reads their output, ends them."""

from __future__ import annotations

import contextlib
import functools
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ciranda.compare import machine, protocol, starts
from ciranda.compare.setting import Setting
from ciranda.compare.starts import Start
from ciranda.compare.system import System
from ciranda.launch.run.process_tree import descendants, die_with_parent, send_signal
from ciranda.netns.link import Link
from ciranda.netns.namespace import obstacle
from ciranda.netns.network import Network

# Links between hosts that are namespaces; "vpn" is the study's link between two homes.
LINKS = {
    "hosts": Link(),
    "lan": Link(rate_mbit=1000.0),
    "vpn": Link(delay_ms=30, rate_mbit=10.4),
}
_HOSTS = 2
_KILLED_AFTER_S = 1.0  # after the end of the first epoch
_ROLES = {"worker": "rank 1", "server": "server 0", "coordinator": "coordinator"}
_LIMIT_S = 900.0
_ENDING_S = 20.0
_LINES_KEPT, _LINES_SAID = 400, 40
_ROLE = r"(rank \d+|server \d+|coordinator)"
_PID = re.compile(rf"ciranda: {_ROLE} is pid (\d+)")
_AGAIN = re.compile(rf"ciranda: {_ROLE} was ended by .* started again")

Outcome = dict[str, Any]
# Gets the last message of rank 0 (protocol.say), or None before the first; called often.
Watch = Callable[[Outcome | None], None]


class RunFailedError(RuntimeError):
    """A run failed; the message is the last output of its processes."""


class _Heard:
    """Messages and output of the processes so far."""

    def __init__(self, setting: Setting) -> None:
        self.ranks: dict[int, Outcome] = {}
        self.size = 0
        self.started_again: list[str] = []
        self.lines: list[str] = []
        self.place: Outcome | None = None  # the last message of rank 0
        self.kill_at: float | None = None
        self.role = _ROLES.get(setting.killed, "")
        self.pids: dict[str, int] = {}

    def line(self, text: str) -> None:
        said = protocol.heard(text)
        if said is None:
            self._of_launcher(text)
        elif "outcome" in said:
            self.outcome(said)
        elif said["rank"] == 0:
            self._of_rank_0(said)

    def _of_rank_0(self, said: Outcome) -> None:
        self.place = said
        ended = "step" not in said and said["epoch"] == 1
        if self.role and ended and self.kill_at is None:
            self.kill_at = time.monotonic() + _KILLED_AFTER_S

    def outcome(self, said: Outcome) -> None:
        self.ranks[said["rank"]] = said["outcome"]
        self.size = said["size"]

    def kill_if_due(self) -> None:
        if self.role and self.kill_at is not None and time.monotonic() >= self.kill_at:
            self.kill_at = None
            with contextlib.suppress(ProcessLookupError, KeyError):
                os.kill(self.pids[self.role], signal.SIGKILL)
            self.role = ""

    def _of_launcher(self, text: str) -> None:
        if found := _PID.search(text):
            self.pids[found[1]] = int(found[2])
        elif found := _AGAIN.search(text):
            self.started_again.append(found[1])
        else:
            self.lines.append(text.rstrip())
            del self.lines[:-_LINES_KEPT]


class Interrupted(Exception):
    """The user ended the comparison."""


Popen = Callable[[Start], "subprocess.Popen[str]"]


def _heard_by_us(start: Start) -> dict[str, Any]:
    """Returns keyword arguments for Popen, here or in a namespace: all output comes as lines."""
    return {
        "env": {**os.environ, **start.variables},
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "errors": "replace",
    }


def here(start: Start) -> subprocess.Popen[str]:
    return subprocess.Popen(
        start.argv,
        **_heard_by_us(start),
        start_new_session=True,  # keeps Ctrl-C for the comparison
        preexec_fn=functools.partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - as in launch
    )


def _nobody_watches(_: Outcome | None) -> None:
    pass


def run(
    system: System,
    setting: Setting,
    stop: threading.Event,
    data_folder: str | None = None,
    hosts: str | None = None,
    watch: Watch = _nobody_watches,
) -> Outcome:
    """Runs one setting and blocks until all processes have ended.

    Raises RunFailedError with what went wrong. Ends all processes and raises Interrupted once
    `stop` is set.
    """
    with tempfile.TemporaryDirectory(prefix="ciranda-compare-") as name:
        folder = Path(name)
        if setting.network != "host" and hosts is None:
            with _network(setting.network, folder / "net") as network:
                addresses = [host.address() for host in network.hosts]
                job = folder / folder.name
                job.mkdir()
                commands = starts.between_hosts(system, setting, data_folder, job, addresses)
                return _measured(_telling(commands, folder), _inside(network), setting, stop, watch)
        if setting.saver == "resumed":
            before = setting.but(saver="checkpoints")
            commands = starts.on_one_host(system, before, data_folder, folder)
            _hear(_telling(commands, folder), here, before, stop, watch)
            shutil.move(folder / "checkpoints", folder / "before")
        commands = starts.on_one_host(system, setting, data_folder, folder, hosts)
        if hosts is None:
            commands = _telling(commands, folder)
        return _measured(commands, here, setting, stop, watch)


def _telling(commands: Sequence[Start], folder: Path) -> list[Start]:
    """Gives the commands a folder for the outcome of each rank."""
    told = Path(tempfile.mkdtemp(dir=folder))
    variables = {protocol.FOLDER: str(told)}
    return [replace(each, variables={**each.variables, **variables}) for each in commands]


def network_obstacle() -> str | None:
    """Returns why there is no second host here; None if one can be made."""
    why = obstacle()
    return why and f"two hosts are made of namespaces, or given by --hosts: {why}"


@contextlib.contextmanager
def _network(kind: str, folder: Path) -> Iterator[Network]:
    with Network(_HOSTS, folder, addresses=("ipv4",), router=kind == "vpn") as network:
        network.set_link(LINKS[kind])
        yield network


def _inside(network: Network) -> Popen:
    def popen(start: Start) -> subprocess.Popen[str]:
        return network.hosts[start.host].popen(start.argv, **_heard_by_us(start))

    return popen


def _measured(
    commands: Sequence[Start],
    popen: Popen,
    setting: Setting,
    stop: threading.Event,
    watch: Watch,
) -> Outcome:
    others, joules, begin = machine.Others(), machine.joules(), time.monotonic()
    heard = _hear(commands, popen, setting, stop, watch)
    seconds, after = time.monotonic() - begin, machine.joules()
    counted = None if joules is None or after is None or after < joules else after - joules
    return {
        "ranks": [heard.ranks[rank] for rank in sorted(heard.ranks)],
        "started_again": heard.started_again,
        "command_s": seconds,
        "busy_percent": others.busy_percent(),
        "joules": counted,
    }


def _hear(
    commands: Sequence[Start],
    popen: Popen,
    setting: Setting,
    stop: threading.Event,
    watch: Watch,
) -> _Heard:
    """Reads output until all processes have ended; raises RunFailedError if one fails."""
    heard, lines = _Heard(setting), queue.Queue[str]()
    processes: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    deadline = time.monotonic() + _LIMIT_S
    try:
        for command in commands:
            processes.append(popen(command))
            out = processes[-1].stdout
            readers.append(threading.Thread(target=_read, args=(out, lines), daemon=True))
            readers[-1].start()
        while any(reader.is_alive() for reader in readers) or not lines.empty():
            with contextlib.suppress(queue.Empty):
                heard.line(lines.get(timeout=0.1))
            heard.kill_if_due()
            watch(heard.place)
            if stop.is_set():
                raise Interrupted
            if any(process.poll() not in (None, 0) for process in processes):
                break
            if time.monotonic() > deadline:
                raise RunFailedError(f"did not end in {_LIMIT_S:.0f} s")
        else:
            _let_end(processes)
        for reader in readers:
            reader.join(timeout=2.0)
        while not lines.empty():
            heard.line(lines.get())
        if (told := commands[0].variables.get(protocol.FOLDER)) is not None:
            for said in protocol.read(Path(told)):
                heard.outcome(said)
        _check(processes, heard)
    finally:
        _end(processes)
    return heard


def _check(processes: Sequence[subprocess.Popen[str]], heard: _Heard) -> None:
    failed = [code for each in processes if (code := each.poll()) not in (None, 0)]
    said = "\n".join([line for line in heard.lines if line.strip()][-_LINES_SAID:])
    if failed or not heard.ranks:
        raise RunFailedError(said or f"ended with code {failed[:1]}")
    if len(heard.ranks) != heard.size:
        raise RunFailedError(f"{heard.size - len(heard.ranks)} of {heard.size} ranks said nothing")


def _read(stream: Iterable[str], lines: queue.Queue[str]) -> None:
    with contextlib.suppress(ValueError):  # closed in the meantime
        for line in stream:
            lines.put(line)


def _let_end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Waits for processes with closed output: only then are exit codes and CPU times known."""
    deadline = time.monotonic() + _ENDING_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, deadline - time.monotonic()))


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Kills the processes and all that they have started: mpirun's ranks outlive mpirun."""
    for process in processes:
        if process.poll() is None:
            below = descendants(process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for each in below:
                send_signal(each, signal.SIGKILL)
    for process in processes:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
