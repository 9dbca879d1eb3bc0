"""What an elastic job costs, and how long it stands still when a rank is killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.common import WORKERS, Samples, as_json, one_thread_env
from benchmarks.report import Report

from ciranda.measure.sides import ciranda_command

KILLS = 20  # of each number of ranks
SPARE_S = 0.5  # from the file of a new spare's steps to where it waits
ROUNDS = 5
COSTS = {"tiny": (8, 4000), "mlp": (64, 800)}  # batch, steps


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    with Report("elastic", "Elastic jobs on one host").kept() as filled:
        yield filled


class Job:
    """An elastic job that trains until it is told to end."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder = folder
        self._ranks = ranks
        self._process = subprocess.Popen(
            [
                *(*ciranda_command(), "run", "-np", str(ranks), "--min-np", str(ranks)),
                *("--spares", "1", str(WORKERS / "elastic.py")),
                *("--loop", "elastic", "--model", "mlp"),
            ],
            cwd=folder,
            env=one_thread_env(),
            stdout=subprocess.DEVNULL,
            stderr=open(folder / "stderr", "w"),  # noqa: SIM115 - the job's
        )

    def _living(self) -> dict[int, Path]:
        """The file of the steps of each living process, by pid."""
        files = {int(path.name.partition("-")[2]): path for path in self.folder.glob("steps-*")}
        return {pid: path for pid, path in files.items() if Path(f"/proc/{pid}").exists()}

    def wait_for_spare(self) -> None:
        """Waits until a spare is ready to take a rank's place."""
        deadline = time.monotonic() + 120
        while len(self._living()) <= self._ranks:
            assert time.monotonic() < deadline and self._process.poll() is None, "no spare"
            time.sleep(0.05)
        time.sleep(SPARE_S)

    def last_steps(self) -> dict[int, int]:
        """The time of each living rank's newest step, by pid."""
        newest = {}
        for pid, path in self._living().items():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 200))
                lines = file.read().splitlines()
            if lines:
                newest[pid] = int(lines[-1].split()[0])
        return newest

    def wait_for_step(self, after: int) -> None:
        """Waits until a step was made after that time."""
        deadline = time.monotonic() + 120
        while not any(at > after for at in self.last_steps().values()):
            assert time.monotonic() < deadline and self._process.poll() is None, "no step"
            time.sleep(0.02)

    def pause_ms(self, rng: random.Random) -> float:
        """Kills a rank; returns the time to the next step of another."""
        now = time.monotonic_ns()
        trains = [pid for pid, at in self.last_steps().items() if now - at < 1e9]
        victim = rng.choice(trains)
        killed_at = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        self.wait_for_step(killed_at + 1_000_000_000)  # all have gone on for a second
        after = [
            int(line.split()[0])
            for path in self.folder.glob("steps-*")
            if not path.name.endswith(f"-{victim}")
            for line in path.read_text().splitlines()
            if int(line.split()[0]) > killed_at
        ]
        # The survivors may still end the step that they were in: the pause is the longest gap.
        gaps = itertools.pairwise(sorted([killed_at, *after]))
        return max(b - a for a, b in gaps if a < killed_at + 1_000_000_000) / 1e6

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=60)


def test_pause_of_a_kill(report: Report, benchmark: Any, tmp_path: Path) -> None:
    pauses: dict[str, Samples] = {}

    def kill_all() -> None:
        for ranks in (2, 3, 4):
            folder = tmp_path / str(ranks)
            folder.mkdir()
            job, rng = Job(folder, ranks), random.Random(ranks)
            with contextlib.closing(job):
                job.wait_for_step(0)
                for _ in range(KILLS):
                    job.wait_for_spare()
                    pauses.setdefault(f"{ranks} ranks and a spare", Samples()).add(
                        job.pause_ms(rng)
                    )

    benchmark.pedantic(kill_all, rounds=1, iterations=1)
    report.table(
        ["from a kill to the next step, ms", "kills", "median", "90 %", "longest"],
        [
            [
                side,
                str(len(each.values)),
                f"{each.median:.0f}",
                f"{statistics.quantiles(each.values, n=10)[-1]:.0f}",
                f"{each.high:.0f}",
            ]
            for side, each in pauses.items()
        ],
    )
    for ranks in (2, 3, 4):
        side = pauses[f"{ranks} ranks and a spare"]
        report.check(f"elastic.pause.{ranks}", f"pause of a kill, {ranks} ranks", side, 0)
    report.data["pause_ms"] = as_json(pauses)
    report.panels["pause of a kill, ms"] = pauses


@pytest.mark.parametrize("model", COSTS)
def test_cost_without_a_loss(model: str, report: Report, benchmark: Any, tmp_path: Path) -> None:
    steps_us: dict[str, Samples] = {"plain": Samples(), "elastic": Samples()}
    batch, steps = COSTS[model]

    def one_round() -> None:
        for loop, samples in steps_us.items():
            samples.add(_step_us(tmp_path, loop, model, batch, steps))

    benchmark.pedantic(one_round, rounds=ROUNDS, iterations=1)
    above = steps_us["elastic"].minus(steps_us["plain"])
    report.table(
        [f"a step of 2 ranks, {model}, µs", *steps_us],
        [["median of the slower rank", *(each.show(0) for each in steps_us.values())]],
    )
    report.check(f"elastic.cost.{model}", f"an elastic step above a plain one, {model}", above, 0)
    report.data.setdefault("step_us", {})[model] = as_json(steps_us)
    report.panels[f"step of {model}, µs"] = steps_us


def _step_us(folder: Path, loop: str, model: str, batch: int, steps: int) -> float:
    here = folder / f"{loop}-{time.monotonic_ns()}"
    here.mkdir()
    options = ["--min-np", "2"] if loop == "elastic" else []
    subprocess.run(
        [
            *(*ciranda_command(), "run", "-np", "2", *options, str(WORKERS / "elastic.py")),
            *("--loop", loop, "--model", model, "--batch", str(batch), "--steps", str(steps)),
        ],
        cwd=here,
        env=one_thread_env(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    medians = []
    for path in here.glob("steps-*"):
        times = [int(line.split()[0]) for line in path.read_text().splitlines()][steps // 4 :]
        gaps = [b - a for a, b in itertools.pairwise(times)]
        medians.append(statistics.median(gaps) / 1e3)
    return max(medians)
