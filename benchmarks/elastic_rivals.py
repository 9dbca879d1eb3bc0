"""Trainings of workers/elastic_rivals.py whose ranks are killed: by ciranda, torchrun, torchft."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import WORKERS, missing_peer, one_thread_env
from benchmarks.workers.elastic_rivals import BATCH, CHECKPOINT_STEPS, SAMPLES

from ciranda.measure.sides import ciranda_command, free_port

RANKS = 2
START_S, END_S = 120.0, 180.0
KILL_EACH_S = 5.0
AT_ONCE_NS = 500_000_000  # the pause begins within that time after a kill
SCRIPT = str(WORKERS / "elastic_rivals.py")


@dataclass
class Outcome:
    """What came of a system's training."""

    kills: int
    pauses_s: list[float]
    steps: int  # that the model has made in the end
    made_again: int
    samples_lost: int
    passes: int
    accuracy: float
    seconds: float  # from the first step to the request to end


class Rival:
    """One system's job. It starts lost ranks again, or tend() does."""

    missing = False

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def tend(self) -> None:
        """Is called all the while."""

    def close(self) -> None:
        for each in self._processes:
            each.send_signal(signal.SIGTERM)
        for each in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(20)
            each.kill()
            each.wait()

    def _start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "output", "a") as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=one_thread_env(**environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._processes.append(process)
        return process


class Ciranda(Rival):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        options = ["-np", str(RANKS), "--min-np", str(RANKS), "--spares", "1"]
        self._start(*ciranda_command(), "run", *options, SCRIPT, "--side", "ciranda")


class Torchrun(Rival):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        options = ["--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "10000"]
        options += ["--monitor-interval", "0.1"]
        module = [sys.executable, "-m", "torch.distributed.run"]
        # Ranks that start again would else find the addresses of those before (torch 2.15).
        no_stale_keys = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self._start(*module, *options, SCRIPT, "--side", "torchrun", **no_stale_keys)


class Torchft(Rival):
    """Its launcher is a part of torchx, so a rank that has died is started again here."""

    missing = missing_peer("torchft")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        port = free_port()
        self._start(
            _program_of("torchft", "torchft_lighthouse"),
            *("--min_replicas", "1", "--quorum_tick_ms", "50", "--join_timeout_ms", "1000"),
            *("--bind", f"127.0.0.1:{port}"),
        )
        self._lighthouse = f"http://127.0.0.1:{port}"
        self._ranks = [self._start_rank(place) for place in range(RANKS)]

    def _start_rank(self, place: int) -> subprocess.Popen[bytes]:
        return self._start(
            *(sys.executable, SCRIPT, "--side", "torchft"),
            TORCHFT_LIGHTHOUSE=self._lighthouse,
            PLACE=str(place),
            PLACES=str(RANKS),
        )

    def tend(self) -> None:
        for place, process in enumerate(self._ranks):
            if process.poll() not in (None, 0):
                self._ranks[place] = self._start_rank(place)


SYSTEMS: dict[str, tuple[type[Rival], bool]] = {  # whether ranks are killed
    "ciranda, no kill": (Ciranda, False),
    "ciranda": (Ciranda, True),
    "torchrun": (Torchrun, True),
    "torchft": (Torchft, True),
}
HOW = f"""{RANKS} ranks, batches of {BATCH}, Adam, real interpreters. A kill comes {KILL_EACH_S:g} s
after the one before, or as soon as a rank trains again. ciranda has one spare. torchrun starts all
ranks again (`--max-restarts`), with a checkpoint each {CHECKPOINT_STEPS} steps. torchft goes on
with one rank, and the benchmark starts the lost one again; without its wheel it is left out.
Horovod does not build against this torch. A pause ends with a step that had not been made before.
"""


def _program_of(module: str, name: str) -> str:
    """The program that was installed with a module, if need be into a folder of its own."""
    spec = importlib.util.find_spec(module)
    folders = [Path(sys.executable).parent]
    folders += [Path(spec.origin).parents[1] / "bin"] if spec and spec.origin else []
    return shutil.which(name, path=os.pathsep.join(map(str, folders))) or name


class _Lines:
    """What the ranks have written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of_processes(self) -> Iterator[list[list[Any]]]:
        for path in self._folder.glob("log-*"):
            lines = path.read_bytes().splitlines(keepends=True)
            yield [json.loads(line) for line in lines if line.endswith(b"\n")]

    def training(self) -> list[int]:
        """Returns the processes that have made a step a moment ago."""
        now = time.time_ns()
        return [
            int(path.name.partition("-")[2])
            for path in self._folder.glob("log-*")
            if now - path.stat().st_mtime_ns < 1e9
            and Path(f"/proc/{path.name.partition('-')[2]}").exists()
        ]


def train(rival: Rival, seconds: float, kill_each_s: float, rng: random.Random) -> Outcome:
    """Lets it train for so long, and kills a rank each `kill_each_s` seconds if one trains then,
    otherwise as soon as one does. 0: none."""
    lines = _Lines(rival.folder)
    _wait(rival, lambda: bool(lines.training()), START_S)
    began = time.monotonic()
    due, killed_at = began + kill_each_s, []
    while time.monotonic() < began + seconds:
        rival.tend()
        if kill_each_s and time.monotonic() >= due and (victims := lines.training()):
            killed_at.append(time.monotonic_ns())
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(victims), signal.SIGKILL)
            due = max(due + kill_each_s, time.monotonic() + kill_each_s / 2)
        time.sleep(0.02)
    ended = time.monotonic()
    (rival.folder / "stop").touch()
    _wait(rival, (rival.folder / "result.json").exists, END_S)
    result = json.loads((rival.folder / "result.json").read_text())
    return _outcome(lines, killed_at, ended - began, result)


def _wait(rival: Rival, condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            output = (rival.folder / "output").read_text()[-3000:]
            raise AssertionError(f"{type(rival).__name__} does not go on:\n{output}")
        rival.tend()
        time.sleep(0.05)


def _outcome(
    lines: _Lines, killed_at: Sequence[int], seconds: float, result: dict[str, Any]
) -> Outcome:
    made: list[tuple[int, int]] = []  # time, step
    dealt: dict[tuple[int, int], list[tuple[int, list[int]]]] = defaultdict(list)
    attempts: set[tuple[int, int]] = set()
    shares: dict[int, Counter[tuple[int, ...]]] = defaultdict(Counter)  # with which a step was made
    for of_process in lines.of_processes():
        ids: list[int] = []
        for kind, step, attempt, number, *rest in of_process:
            if kind == "dealt":
                ids = rest[0]
                dealt[step, attempt].append((number, ids))
            else:
                made.append((rest[0], step))
                attempts.add((step, attempt))
                shares[step][tuple(ids)] += 1
    counted: dict[int, set[int]] = defaultdict(set)  # samples by pass
    for key in attempts:
        for number, ids in dealt[key]:
            counted[number].update(ids)
    made.sort()
    return Outcome(
        kills=len(killed_at),
        pauses_s=[_pause_s(made, at) for at in killed_at],
        steps=result["steps"],
        made_again=sum(max(each.values()) - 1 for each in shares.values()),
        samples_lost=sum(SAMPLES - len(counted[each]) for each in range(result["passes"])),
        passes=result["passes"],
        accuracy=result["accuracy"],
        seconds=seconds,
    )


def _pause_s(made: Sequence[tuple[int, int]], killed_at: int) -> float:
    """The longest time without a new step that begins right after the kill."""
    newest = max((step for at, step in made if at <= killed_at), default=-1)
    times = [killed_at]
    for at, step in made:
        if at > killed_at and step > newest:
            newest = step
            times.append(at)
    gaps = [b - a for a, b in itertools.pairwise(times) if a < killed_at + AT_ONCE_NS]
    return max(gaps, default=float("inf")) / 1e9
