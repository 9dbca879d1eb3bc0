"""Checkpoints of an elastic job: breaks when a rank that dies while it writes leaves a torn
checkpoint, stops later ones, or when another job does not go on where one has ended."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("warm_start")

PROGRAM = """
import hashlib, json, torch
import ciranda.torch as hvd
from ciranda.torch import elastic
from ciranda.torch.checkpoints.folder import DiskFolder
from torch.utils.data import DataLoader, TensorDataset

own = int(os.environ.get("CIRANDA_INCARNATION", "0"))
kills, last = json.loads(os.environ["PLAN"])

def dying(name):
    call = getattr(DiskFolder, name)
    def instead(self, *arguments, **named):
        for rank, where, step in kills:
            if (hvd.rank(), name) == (rank, where) and f"{step:012d}." in str(arguments[0]):
                try:
                    os.close(os.open(f"killed-{step}", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
        return call(self, *arguments, **named)
    setattr(DiskFolder, name, instead)

for name in ("create", "write", "report", "complete"):
    dying(name)

hvd.init()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
model = model.double()
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
data = TensorDataset(torch.randn(48, 8, dtype=torch.float64))
loader = DataLoader(data, 4, shuffle=True)
state = elastic.TorchState(model, optimizer, scheduler=scheduler, total=0)
checkpoints = hvd.Checkpoints("run", every_steps=1, keep=3)
restored = checkpoints.restore(state)
for number in range(4):
    for step in elastic.steps(loader, state):
        with step as (x,):
            state.total += 1
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            optimizer.step()
        if step.done:
            checkpoints.step(state)
            checkpoints.wait()
        if state.step == last:
            break
    if state.step == last:
        break
    scheduler.step()
    elastic.agreed(lambda: 0)
checkpoints.close()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
result = {"digest": digest.hexdigest(), "total": state.total, "step": state.step,
          "lr": optimizer.param_groups[0]["lr"], "restored": restored, "size": hvd.size()}
open(f"result-{own}", "w").write(json.dumps(result))
"""


def run(launcher: Any, *options: str, kills: Any = (), last: int = -1) -> Any:
    for old in launcher.folder.glob("result-*"):
        old.unlink()
    plan = {"PLAN": json.dumps([kills, last])}
    done = launcher.run(*options, launcher.script(PROGRAM), environment=plan)
    assert done.returncode == 0, done.stderr + done.stdout
    results = [json.loads(each.read_text()) for each in launcher.folder.glob("result-*")]
    assert all({**each, "restored": 0} == {**results[0], "restored": 0} for each in results)
    for _, _, step in kills:
        assert (launcher.folder / f"killed-{step}").exists(), "nobody died"
    return results[0], done.stderr + done.stdout


def names(launcher: Any) -> list[str]:
    return sorted(os.listdir(launcher.folder / "run"))


KILLS = [
    [(1, "write", 3), (0, "write", 6), (1, "report", 10)],
    [(0, "create", 3), (0, "complete", 6), (2, "write", 10)],
]


@pytest.mark.parametrize("kills", KILLS)
def test_ranks_that_die_while_they_write_tear_nothing(launcher: Any, kills: Any) -> None:
    result, said = run(launcher, "-np", "3", "--min-np", "3", kills=kills)
    assert said.count("was killed by SIGKILL") == 3 and result["total"] == result["step"]
    last = result["step"]
    whole = names(launcher)[1:]
    assert names(launcher)[0] == "owner" and whole[-1] == f"step-{last:012d}.pt"
    assert not [name for name in whole if "tmp" in name]
    found = torch.load(launcher.folder / "run" / whole[-1], weights_only=True)
    assert found["total"] == last and found["ciranda"]["progress"]["blocks"] == last
    assert not re.search(r"(?i)warning", said)


def test_another_job_goes_on_where_one_has_ended(launcher: Any) -> None:
    """The first one ends within a pass: the second one trains on the rest of it, to the bit."""
    options = ("-np", "2", "--min-np", "1")
    quiet, _ = run(launcher, *options)
    for name in names(launcher):
        (launcher.folder / "run" / name).unlink()
    part, _ = run(launcher, *options, last=15)
    assert (part["step"], part["restored"]) == (15, None)
    rest, _ = run(launcher, *options)
    assert rest["restored"] == 15
    assert {**rest, "restored": None} == quiet
    # An ordinary job, and of another number of ranks, reads it too.
    (launcher.folder / "run" / names(launcher)[-1]).unlink()
    one, _ = run(launcher, "-np", "1")
    assert (one["restored"], one["total"]) == (quiet["step"] - 1, one["step"])
