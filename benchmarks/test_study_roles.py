"""A published comparison by one command: native roles with a sharded saver.

    python -m pytest benchmarks/test_study_roles.py

The study describes distributed TensorFlow with the roles chief, worker, ps and evaluator, a saver
that writes in parts each 1,000 steps, and how a worker, a server and the chief recover. Here one
training runs with and without checkpoints, with each role killed once, and goes on from a
checkpoint on another number of servers.
"""

from __future__ import annotations

import collections
import csv
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.common import Samples, as_json
from benchmarks.test_studies import RUNS, TRAINING_IMAGES, report_of

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "python"))
from role_job import RoleJob

PROGRAM = Path(__file__).resolve().parents[1] / "examples" / "fashion_mnist_tasks.py"
EPOCHS = 3
KILLED_AFTER_S = 2.0
# Server 0 has the tasks, and says when a checkpoint is whole.
ROLES = {
    "worker": "rank 0",
    "server": "server 0",
    "coordinator": "coordinator",
    "evaluator": "evaluator",
}
BARE = "no checkpoints"
SAVING = "checkpoints"
QUIET = "quiet: checkpoints, logs, and the evaluator"
RESUMED = "its last checkpoint on 3 servers, for an epoch"

HOW = f"""A perceptron of 669,706 parameters (784-512-512-10), batches of 64, Adam with a learning
rate of 1e-3, on Fashion-MNIST for {EPOCHS} epochs, {RUNS} runs: `examples/fashion_mnist_tasks.py`
with two workers, two servers, and the coordinator, which is the study's chief; one thread in each
process. The servers make a checkpoint each 1,000 steps, and one at the end. The quiet job's
servers keep logs, too (`--ps-dir`), and the evaluator computes beside the workers. It is then run
again for each role, which is killed {KILLED_AFTER_S:g} s after the first epoch.
Images/s are those of the epochs, with a test after each; seconds are those of the whole command.
The study names no figures: the targets are the project's."""


class Runs:
    """What came of a row's runs."""

    def __init__(self) -> None:
        self.figures: dict[str, Samples] = collections.defaultdict(Samples)
        self.started_again: set[str] = set()

    def add(self, *options: str, epochs: int = EPOCHS, killed: str = "") -> None:
        program = [str(PROGRAM), "--threads", "1"]
        began = time.monotonic()
        with RoleJob("-np", "2", "--coordinator", *options, *program, f"--epochs={epochs}") as job:
            if killed:
                job.wait_for("epoch 1:")
                time.sleep(KILLED_AFTER_S)
                job.kill(killed)
            job.ends_within(None)
        self._add("seconds", time.monotonic() - began)
        assert not killed or killed in job.started_again, f"{killed} was killed too late"
        self.started_again.update(job.started_again)
        lines = [(at, re.search(r"accuracy\D+([\d.]+) %", line)) for at, line in job.printed]
        (start_s, first), *_, (end_s, last) = [(at, float(m[1])) for at, m in lines if m]
        self._add("start_s", start_s)
        self._add("first_accuracy", first)
        self._add("accuracy", last)
        self._add("images_per_s", epochs * TRAINING_IMAGES / (end_s - start_s))

    def add_checkpoints(self, folder: Path) -> None:
        """Of the run that was added last."""
        whole = [manifest.parent for manifest in folder.glob("checkpoint-*/manifest")]
        self._add("made", max(int(each.name.split("-")[1]) for each in whole))
        for part in (part for each in whole for part in each.glob("part-*")):
            late = part.with_name(part.name.replace("part", "late"))  # what came after its cut
            self._add("part_mb", (part.stat().st_size + late.stat().st_size) / 1e6)
        if (folder / "curve.csv").exists():
            with open(folder / "curve.csv", newline="") as file:
                self._add("scored", len(list(csv.DictReader(file))))

    def show(self, figure: str, digits: int = 0) -> str:
        return self.figures[figure].show(digits) if figure in self.figures else ""

    def _add(self, figure: str, value: float) -> None:
        self.figures[figure].add(value)


@pytest.mark.timeout(1800)
def test_roles_and_a_sharded_saver(tmp_path: Path, benchmark: Any) -> None:
    killed = {role: f"{role} killed" for role in ROLES}
    found = {title: Runs() for title in (BARE, SAVING, QUIET, *killed.values(), RESUMED)}

    def saver(folder: Path) -> list[str]:
        return ["--ps", "2", "--checkpoint-dir", str(folder), "--checkpoint-every", "1000"]

    def everything(folder: Path) -> list[str]:
        log = ["--ps-dir", f"{folder}-state"]
        return [*saver(folder), *log, "--evaluator", "--restarts", "9"]

    def one_run(number: int) -> None:
        def folder(name: str) -> Path:
            return tmp_path / f"{name}-{number}"

        found[BARE].add("--ps", "2")
        found[SAVING].add(*saver(folder("saving")))
        found[SAVING].add_checkpoints(folder("saving"))
        found[QUIET].add(*everything(folder("quiet")))
        found[QUIET].add_checkpoints(folder("quiet"))
        for role, title in killed.items():
            found[title].add(*everything(folder(role)), killed=ROLES[role])
            found[title].add_checkpoints(folder(role))
        found[RESUMED].add("--ps", "3", "--restore", str(folder("quiet")), epochs=1)

    numbers = iter(range(RUNS))
    title = "Native roles with a sharded saver"
    with report_of("study-roles", title, HOW) as report:
        benchmark.pedantic(lambda: one_run(next(numbers)), rounds=RUNS, iterations=1)
        quiet = found[QUIET].figures
        resumed = found.pop(RESUMED)

        def lost(runs: Runs) -> str:
            return runs.figures["seconds"].minus(quiet["seconds"]).show(1)

        report.table(
            (
                "job",
                "images/s",
                "seconds",
                "seconds lost",
                "started again",
                "accuracy at the end, %",
                "checkpoints",
                "scored by the evaluator",
                "a server's part, MB",
            ),
            [
                [
                    title,
                    runs.show("images_per_s"),
                    runs.show("seconds", 1),
                    lost(runs) if runs.started_again else "",
                    ", ".join(sorted(runs.started_again)),
                    runs.show("accuracy", 1),
                    runs.show("made"),
                    runs.show("scored"),
                    runs.show("part_mb", 1),
                ]
                for title, runs in found.items()
            ],
        )
        report.table(
            (
                "resumed",
                "accuracy it begins with, %",
                "of the job before, %",
                "at the end, %",
                "seconds until the first",
                "of the quiet job",
            ),
            [
                [
                    RESUMED,
                    resumed.show("first_accuracy", 2),
                    found[QUIET].show("accuracy", 2),
                    resumed.show("accuracy", 2),
                    resumed.show("start_s", 1),
                    found[QUIET].show("start_s", 1),
                ]
            ],
        )
        for title, runs in {**found, RESUMED: resumed}.items():
            report.data[title] = as_json(runs.figures)
        saving, bare = (found[title].figures["images_per_s"] for title in (SAVING, BARE))
        report.check(
            "studies.saver",
            "images/s with checkpoints, % of those without",
            saving.over(bare).scaled(100),
            1,
        )
        for role, title in killed.items():
            report.check(
                f"studies.recovery.{role}",
                f"accuracy, {title} - quiet",
                found[title].figures["accuracy"].minus(quiet["accuracy"]),
            )
