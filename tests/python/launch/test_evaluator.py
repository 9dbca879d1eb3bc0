"""The evaluator: breaks when a checkpoint is scored twice, the last one is not, or the job does not
end as its other processes do."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ciranda.errors import CirandaError, InvalidArgumentError
from ciranda.torch import ps

pytestmark = pytest.mark.usefixtures("warm_start")

# Each step adds to the weight, so that its value tells the pushes.
PROGRAM = """
import os, sys, time, torch, ciranda.torch as cr
model = torch.nn.Linear(1, 1, bias=False)
folder = os.environ["FOLDER"]
def rows():
    path = os.path.join(folder, "curve.csv")
    return len(open(path).readlines()) - 1 if os.path.exists(path) else 0
def score():
    SCORING
    return {"weight": model.weight.item(), "twice": 2 * model.weight.item()}
if cr.ps.is_evaluator():
    cr.ps.evaluate(model, score)
    sys.exit()
cr.init()
with torch.no_grad():
    model.weight.fill_(0.0)
optimizer = cr.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(),
    ps=cr.ps.Async())
cr.broadcast_parameters(model.named_parameters(), root_rank=0)
for step in range(8):
    while rows() < step // 2 - 1:  # a checkpoint is scored while there is one more
        time.sleep(0.01)
    optimizer.zero_grad()
    (-model.weight).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def run(launcher, tmp_path) -> Any:
    folder = tmp_path / "checkpoints"

    def run(*options: str, scoring: str = "pass") -> Any:
        program = launcher.folder / "train.py"
        program.write_text(PROGRAM.replace("SCORING", scoring))
        told = ("-np", "1", "--ps", "2", "-x", f"FOLDER={folder}", "--evaluator")
        made = ("--checkpoint-dir", str(folder), "--checkpoint-every", "2")
        return launcher.run(*told, *made, *options, str(program))

    run.folder = folder
    return run


def curve_of(folder: Path) -> list[dict[str, float]]:
    with open(folder / "curve.csv", newline="") as file:
        return [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)]


def test_each_checkpoint_is_scored_once_and_the_last_one_too(run):
    dies = "died = f'died at {rows()}'; die = rows() in (0, 1) and not os.path.exists(died)"
    dies += "; _ = die and (open(died, 'w').close(), os.kill(os.getpid(), 9))"
    done = run("--restarts", "2", scoring=dies)
    assert done.returncode == 0, done.stderr
    assert "evaluator was ended by Killed, SIGKILL (9); it is started again, 2 of 2" in done.stderr
    curve = curve_of(run.folder)
    numbers = [row["checkpoint"] for row in curve]
    assert numbers == sorted(set(numbers)) and len(numbers) >= 3
    assert [row["weight"] for row in curve] == sorted(row["weight"] for row in curve)
    assert curve[-1]["weight"] == 8 and curve[-1]["twice"] == 16
    times = [row["time"] for row in curve]
    assert times == sorted(times) and 0 < times[-1] - times[0] < 600

    model = torch.nn.Linear(1, 1, bias=False)
    assert ps.evaluate(model, lambda: {"weight": 0.0, "twice": 0.0}, run.folder) == curve
    newest = max(run.folder.glob("checkpoint-*"), key=lambda each: int(each.name.split("-")[1]))
    with open(run.folder / "curve.csv", "ab") as file:
        file.write(b"99,12")  # it was killed in the middle of a row
    assert ps.evaluate(model, lambda: {"weight": 0.0, "twice": 0.0}, run.folder) == curve
    (run.folder / "curve.csv").unlink()
    alone = ps.evaluate(model, model.weight.item, run.folder)
    assert [row["score"] for row in alone][-1] == 8 and len(alone) == 2
    (newest / "part-0-of-2").write_bytes(b"")
    (run.folder / "curve.csv").unlink()
    with pytest.raises(CirandaError, match="part-0-of-2 cannot be used"):
        ps.evaluate(model, lambda: 0.0, run.folder)


def test_an_evaluator_that_fails_ends_the_job(run):
    done = run(scoring="raise ValueError('no data to score with')")
    assert done.returncode == 1
    assert re.search("culprit +evaluator on .*, pid", done.stderr)
    assert "no data to score with" in done.stderr
    assert "rank 0" in done.stderr  # ended by the launcher


def test_wrong_use_is_a_sentence(launcher, tmp_path):
    model = torch.nn.Linear(1, 1)
    with pytest.raises(
        InvalidArgumentError, match="this process is not an evaluator; start one by"
    ):
        ps.evaluate(model, lambda: 0.0)
    curve = tmp_path / "curve.csv"
    curve.write_text("when,what\n1,2\n")
    with pytest.raises(InvalidArgumentError, match=r"curve\.csv is not a curve of an evaluator"):
        ps.evaluate(model, lambda: 0.0, tmp_path)
    done = launcher.run("-np", "1", "--ps", "1", "--evaluator", "true")
    assert done.returncode == 2
    assert "--evaluator goes with --checkpoint-dir, the checkpoints that it scores" in done.stderr
    program = launcher.folder / "train.py"
    program.write_text("import ciranda.torch as cr\ncr.init()\n")
    made = ("--ps", "1", "--checkpoint-dir", str(tmp_path / "c"))
    done = launcher.run("-np", "1", *made, "--evaluator", str(program))
    assert done.returncode == 1
    assert "init: this process is the evaluator of --evaluator and trains nothing" in done.stderr


def test_dry_run_shows_it(launcher, tmp_path):
    made = ("--ps", "1", "--checkpoint-dir", str(tmp_path))
    done = launcher.run("-np", "1", *made, "--evaluator", "--dry-run", "true")
    assert done.returncode == 0, done.stderr
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("evaluator")]
    assert row[-1].endswith("true")
    told = done.stdout.partition("set for evaluator:")[2]
    assert f"CIRANDA_EVALUATED={tmp_path}" in told and "RANK" not in told
