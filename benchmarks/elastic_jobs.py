"""Elastic jobs that are killed and stopped: what their logs say, and whether nothing was lost.

The jobs' processes start with torch imported (tests/python/warm.py), because a start would take
most of a round, and no figure here is about it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import WORKERS, one_thread_env
from benchmarks.workers import elastic_kills as program

import ciranda

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "python"))
import warm

LIMIT_S = 120
COMPUTING_S = 0.002
READY_S = 0.1  # from a process's last line before it says that it is ready
Line = list[Any]

_PF_EXITING = 4  # of the kernel's task flags
_KILLED = 1 << (signal.SIGKILL - 1)  # among the pending signals


class Process:
    """One process of a job: its log, as far as it is read."""

    def __init__(self, path: Path) -> None:
        self.pid = int(path.name.partition("-")[2])
        self.first: Line = []
        self.last: Line = []
        self._path, self._read = path, 0

    def read_on(self) -> list[Line]:
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        lines = [json.loads(line) for line in whole.splitlines()]
        if lines:
            self.first, self.last = self.first or lines[0], lines[-1]
        return lines

    def is_alive(self) -> bool:
        """Returns False also for a process that was killed and whose memory the kernel still frees:
        it runs no more of its program."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
            status = Path(f"/proc/{self.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        state, *numbers = stat.rpartition(")")[2].split()
        is_exiting = int(numbers[5]) & _PF_EXITING
        signals = status.partition("SigPnd:")[2].split()[0]
        return state != "Z" and not is_exiting and not int(signals, 16) & _KILLED

    def is_ready(self) -> bool:
        since_ns = time.monotonic_ns() - (self.first or [0])[-1]
        return bool(self.first) and since_ns > READY_S * 1e9 and self.is_alive()

    def trains(self) -> bool:
        return bool(self.last) and self.last[0] in ("dealt", "counted") and self.is_alive()


class Job:
    """An elastic job of workers/elastic_kills.py."""

    def __init__(
        self,
        folder: Path,
        kind: str,
        ranks: int,
        *options: str,
        passes: int = 0,
        computing_s: float = COMPUTING_S,
    ) -> None:
        """Without `passes` it trains until finish(). A step takes `computing_s` and a little."""
        folder.mkdir(parents=True)
        self.folder, self.kind, self.ranks = folder, kind, ranks
        self.processes: dict[Path, Process] = {}
        self.lines: dict[str, list[Line]] = defaultdict(list)  # of all processes, by their kind
        self._runtime_dir = tempfile.mkdtemp(prefix="cb-")  # short, for sockets
        environment = one_thread_env(
            PYTHONPATH=str(Path(ciranda.__file__).resolve().parents[1]),
            XDG_RUNTIME_DIR=self._runtime_dir,
        )
        command = ["-m", "ciranda", "run", "-np", str(ranks), *options]
        script = [str(WORKERS / "elastic_kills.py"), "--kind", kind, "--passes", str(passes)]
        script += ["--computing-s", str(computing_s)]
        self.process = warm.Process([*command, *script], environment, folder)

    # What it has done so far

    def read(self) -> None:
        for path in self.folder.glob("log-*"):
            process = self.processes.setdefault(path, Process(path))
            for kind, *line in process.read_on():
                self.lines[kind].append(line)

    def wait_until(self, condition: Callable[[], Any], what: str) -> Any:
        """Waits for a true value of `condition`, which sees all lines so far; returns it."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            self.read()
            if found := condition():
                return found
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise AssertionError(f"no {what} in {self.folder}:\n{self.process.said()}")
            time.sleep(0.005)

    def training(self) -> list[Process]:
        """The processes that train."""
        return [each for each in self.processes.values() if each.trains()]

    def wait_for_processes(self, count: int) -> None:
        """Waits until so many processes train or are ready to."""
        self.wait_until(
            lambda: (
                self.training() and sum(map(Process.is_ready, self.processes.values())) >= count
            ),
            f"{count} processes",
        )

    def epoch(self) -> int:
        """The newest epoch in which a rank was dealt samples."""
        return max(epoch for _, epoch, *_ in self.lines["dealt"][-100:])

    def step_after(self, epoch: int, since: int) -> int:
        """Waits for a step in a newer epoch; returns its time. The lines before were counted."""

        def times() -> list[int]:
            return [at for _, its, _, at in self.lines["counted"][since:] if its > epoch]

        return min(self.wait_until(times, f"step after epoch {epoch}"))

    # What is done to it

    def kill_at_random(self, rng: random.Random) -> float:
        """Kills a rank; returns the time to the end of the next whole step, in ms."""
        time.sleep(rng.uniform(0, 0.02))
        self.read()
        victim = rng.choice(self.training())
        epoch, since = victim.last[2], len(self.lines["counted"])
        killed_at = time.monotonic_ns()
        os.kill(victim.pid, signal.SIGKILL)
        return (self.step_after(epoch, since) - killed_at) / 1e6

    def order(self, *order: tuple[str, str | int]) -> None:
        """Says who dies where, one after the other."""
        (self.folder / "next").write_text(json.dumps(order))
        os.rename(self.folder / "next", self.folder / "order")

    def kill_at(self, *order: tuple[str, str | int]) -> float:
        """Has ranks killed where they say; returns the time from the last kill to the next step."""
        wanted = len(self.lines["killed"]) + len(order)
        since = len(self.lines["counted"])
        self.order(*order)
        self.wait_until(lambda: len(self.lines["killed"]) == wanted, f"kill at {order}")
        killed_at, epoch = max((at, epoch) for epoch, at in self.lines["killed"])
        return (self.step_after(epoch, since) - killed_at) / 1e6

    def stop(self, rng: random.Random) -> tuple[Process, int]:
        """Stops a rank; returns it and the time."""
        self.read()
        victim = rng.choice(self.training())
        os.kill(victim.pid, signal.SIGSTOP)
        return victim, time.monotonic_ns()

    def finish(self) -> None:
        """Has it end after its pass, and waits for it."""
        (self.folder / "stop").touch()
        self.wait()

    def wait(self) -> None:
        code = self.process.wait(LIMIT_S)
        assert code == 0, self.process.said()
        self.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(LIMIT_S)
        shutil.rmtree(self._runtime_dir, ignore_errors=True)

    # What came of it

    def result(self) -> dict[str, Any]:
        """What each rank has found at the end. Checks that they ended alike."""
        results = [json.loads(path.read_text()) for path in self.folder.glob("result-*")]
        for each in results:
            for what in ("passes", "steps", "digest"):
                assert each[what] == results[0][what], what
        return results[0]  # type: ignore[no-any-return]


@dataclass
class Outcome:
    """What a job that has ended has to show."""

    steps: int
    lost: int  # steps that no rank has counted
    twice: int  # times that an optimizer had made another number of steps than were counted
    replay_error: float  # the largest difference of a parameter from the replay
    digest: str
    passes: int


def outcome_of(job: Job) -> Outcome:
    """Checks that the ranks ended alike, and each sample counted once in a pass."""
    result = job.result()
    passes, steps = result["passes"], result["steps"]
    attempts: dict[int, set[int]] = defaultdict(set)
    twice = 0
    for number, epoch, counts, _ in job.lines["counted"]:
        attempts[number].add(epoch)
        twice += any(count != number + 1 for count in counts)
    twice += sum(len(epochs) - 1 for epochs in attempts.values())
    shares: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(dict)
    for number, epoch, rank, size, ids, _ in job.lines["dealt"]:
        shares[number, epoch][rank] = ids
        assert rank < size
    blocks = []
    for number in sorted(attempts):
        of_ranks = shares[number, max(attempts[number])]
        blocks.append([of_ranks[rank] for rank in sorted(of_ranks)])
    dealt = Counter(each for block in blocks for share in block for each in share)
    assert dealt == Counter({each: passes for each in range(program.SAMPLES)})
    return Outcome(
        steps=steps,
        lost=steps - len(attempts),
        twice=twice,
        replay_error=_replay_error(job, blocks),
        digest=result["digest"],
        passes=passes,
    )


def _replay_error(job: Job, blocks: Sequence[Sequence[Sequence[int]]]) -> float:
    """Makes the steps again in this process; returns the largest difference of a parameter."""
    torch.set_num_threads(1)  # the layers are too small for more
    kind = program.KINDS[job.kind]
    nets = program.make_nets(kind)
    optimizers = [torch.optim.Adam(net.parameters()) for net in nets]
    x, y = program.make_samples()
    for block in blocks:
        for optimizer in optimizers:
            optimizer.zero_grad()
        for share in block:
            for loss in program.losses(nets, x[list(share)], y[list(share)], kind):
                (loss / len(block)).backward()
        for net in nets if kind.clips else ():
            torch.nn.utils.clip_grad_norm_(net.parameters(), program.CLIP)
        for optimizer in optimizers:
            optimizer.step()
    path = next(job.folder.glob("parameters-*"))
    ours = [each.detach() for net in nets for each in net.parameters()]
    theirs = torch.load(path)
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
