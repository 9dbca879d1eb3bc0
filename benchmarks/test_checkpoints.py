"""Checkpoints: what they cost a training, and whether a kill ever tears one.

    python -m pytest benchmarks/test_checkpoints.py

CIRANDA_KILLS=1000 kills as many programs that save; without it there are fewer.
CIRANDA_CHECKPOINT_MIB is the size of the state, 1,024 by default.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.common import WORKERS, Samples, as_json, one_thread_env
from benchmarks.report import Report

from ciranda.torch.checkpoints.reader import newest_first, verify

KILLS = int(os.environ.get("CIRANDA_KILLS", "30"))
MIB = int(os.environ.get("CIRANDA_CHECKPOINT_MIB", "1024"))
ROUNDS = 3
SIDES = ("in line", "dcp", "ciranda")  # torch.save(), async_save() of torch, Checkpoints
KILLED = Path(__file__).parents[1] / "tests" / "python" / "torch" / "checkpoints"
FIGURES = {
    "stood_s": "s the program stands still",
    "whole_s": "s until it is on the disk",
    "step_ms": "ms a step meanwhile",
}


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    with Report("checkpoints", "Checkpoints of one process").kept() as filled:
        yield filled


def test_cost(report: Report, tmp_path: Path) -> None:
    found = {figure: {side: Samples() for side in SIDES} for figure in FIGURES}
    for side in SIDES:
        script = str(WORKERS / "checkpoint_cost.py")
        command = [sys.executable, script, side, str(tmp_path), str(MIB), str(ROUNDS)]
        done = subprocess.run(command, env=one_thread_env(), stdout=subprocess.PIPE, check=True)
        for line in done.stdout.splitlines()[1:]:  # the first one allocates memory
            for figure, value in json.loads(line).items():
                found[figure][side].add(value)
    report.table(
        [f"a state of {MIB} MiB", *SIDES],
        [
            [what, *(found[figure][side].show(3) for side in SIDES)]
            for figure, what in FIGURES.items()
        ],
    )
    stood = found["stood_s"]
    for peer in SIDES[:2]:
        ratio = stood["ciranda"].over(stood[peer])
        report.check(f"checkpoints.{peer}", f"standing still, beside {peer}", ratio)
    report.data["cost"] = {figure: as_json(sides) for figure, sides in found.items()}


def test_kills(report: Report, tmp_path: Path) -> None:
    """Children of this process, in which torch is imported, save until they are killed."""
    folder, newest, seed = tmp_path / "run", 0, random.Random(1)
    for _ in range(KILLS):
        child = os.fork()
        if child == 0:
            _save_for_ever(folder)
        deadline = time.monotonic() + 60
        before = _whole(folder)
        while _whole(folder) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(seed.uniform(0, 0.03))
        os.kill(child, 9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9, "it saw a torn checkpoint"
        for name in _whole(folder):
            verify(str(folder / name))
        before_it, newest = newest, int(_whole(folder)[0][5:-3])
        assert newest > before_it
    report.check("checkpoints.torn", f"torn checkpoints after {KILLS} kills", Samples([0]), 0)


def _whole(folder: Path) -> list[str]:
    return newest_first(os.listdir(folder)) if folder.is_dir() else []


def _save_for_ever(folder: Path) -> Any:
    torch.set_num_threads(1)
    sys.argv = ["killed_saver.py", str(folder), "100000"]
    sys.path.insert(0, str(KILLED))
    try:
        import killed_saver  # noqa: F401
    finally:
        os._exit(1)
