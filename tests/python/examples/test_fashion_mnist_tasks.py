"""Fashion-MNIST in tasks: breaks when a job with a coordinator learns less, or does not end,
because any of its processes is killed."""

from __future__ import annotations

import csv
import re
import time
from pathlib import Path
from types import ModuleType

import pytest
from idx_files import write_small_data_set
from role_job import RoleJob


def run_job(example: Path, data: Path, *options: str, epochs: int, kill_every_s: float = 0) -> str:
    """What it has printed."""
    shape = ["-np", "2", "--ps", "2", "--coordinator"]
    program = [str(example.with_name("fashion_mnist_tasks.py")), "--data", str(data)]
    program += ["--epochs", str(epochs), "--threads", "1"]
    with RoleJob(*shape, *options, *program) as job:
        turn = 0
        while not job.ends_within(kill_every_s or None):
            job.kill(sorted(job.pids)[turn % len(job.pids)])
            turn += 1
    print(job.text(), "started again:", job.started_again)
    return job.text()


def last_accuracy(printed: str) -> float:
    return float(re.findall(r"accuracy ([\d.]+) %", printed)[-1])


def test_tasks_learn(example_file: Path, tmp_path: Path) -> None:
    data = write_small_data_set(tmp_path, train=1_920, test=203)
    printed = run_job(example_file, data, epochs=3)
    assert last_accuracy(printed) > 95


@pytest.mark.soak
def test_every_role_may_be_killed(
    example_file: Path, fashion_mnist: ModuleType, tmp_path: Path
) -> None:
    """On the real data set, one process each 5 seconds."""
    data, epochs = fashion_mnist.DEBIAN_DIR, 10
    quiet = last_accuracy(run_job(example_file, data, epochs=epochs))
    checkpoints = tmp_path / "checkpoints"
    options = ["--ps-dir", str(tmp_path / "state"), "--restarts", "999", "--evaluator"]
    options += ["--checkpoint-dir", str(checkpoints), "--checkpoint-every", "10s"]
    began = time.monotonic()
    killed = run_job(example_file, data, *options, epochs=epochs, kill_every_s=5)
    print(f"{quiet} %, {last_accuracy(killed)} % with kills, {time.monotonic() - began:.0f} s")
    assert last_accuracy(killed) >= quiet - 1.0
    with open(checkpoints / "curve.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = [float(row["checkpoint"]) for row in rows]
    assert numbers == sorted(set(numbers))
    assert float(rows[-1]["accuracy"]) >= quiet - 1.0
