"""Fashion-MNIST in tasks: breaks when a job with a coordinator learns less, or does not end,
because any of its processes is killed."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest
from idx_files import write_small_data_set


def run_job(example: Path, data: Path, *options: str, epochs: int, kill_every_s: float = 0) -> str:
    """What it has printed."""
    launcher = [sys.executable, "-m", "ciranda", "run", "-np", "2", "--ps", "2", "--coordinator"]
    job = [str(example.with_name("fashion_mnist_tasks.py")), "--data", str(data)]
    job += ["--epochs", str(epochs), "--threads", "1"]
    process = subprocess.Popen(
        [*launcher, "--verbose", *options, *job],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    pids: dict[str, int] = {}
    said: list[str] = []

    def read_errors() -> None:
        for line in process.stderr or ():
            said.append(line)
            found = re.search(r"(rank \d|server \d|coordinator|evaluator) is pid (\d+)", line)
            if found:
                pids[found[1]] = int(found[2])

    def kill_in_turn() -> None:
        turn = 0
        while not over.wait(kill_every_s):
            name = sorted(pids)[turn % len(pids)]
            turn += 1
            if process.poll() is None:
                os.kill(pids[name], signal.SIGKILL)

    over = threading.Event()
    threads = [threading.Thread(target=read_errors, daemon=True)]
    if kill_every_s:
        threads.append(threading.Thread(target=kill_in_turn, daemon=True))
    for thread in threads:
        thread.start()
    try:
        printed = process.stdout.read()
        code = process.wait()
    finally:
        over.set()
        process.kill()  # which ends the job's tree
    for thread in threads:
        thread.join()
    assert code == 0, printed + "".join(said)
    print(printed, "".join(line for line in said if "started again" in line))
    return printed


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
