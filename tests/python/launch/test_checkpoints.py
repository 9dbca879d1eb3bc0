"""Checkpoints that parameter servers make: breaks when one is not what was trained, does not come
back on other servers or in plain torch, or is taken for whole and is not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from ciranda.errors import CirandaError, InvalidArgumentError
from ciranda.torch import ps

pytestmark = pytest.mark.usefixtures("warm_start")

MODEL = """
import torch, ciranda.torch as cr
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, 3).to(memory_format=torch.channels_last), torch.nn.Flatten(),
    torch.nn.Linear(4 * 36, 50), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 3).double())
for parameter in model[4].parameters():
    parameter.requires_grad_(parameter.dim() == 2)
groups = [{"params": model[2].parameters(), "lr": 0.01},
          {"params": [p for m in (model[4], model[3], model[0]) for p in m.parameters()
                      if p.requires_grad]}]
plain = torch.optim.Adam(groups, lr=0.002)
"""
TRAINING = (
    MODEL
    + """
cr.init()
optimizer = cr.DistributedOptimizer(
    plain, model.named_parameters(), ps=cr.ps.Async())
before = {n: p.detach().clone() for n, p in model.named_parameters()}
for _ in range(STEPS):
    optimizer.zero_grad()
    hidden = model[:4](torch.randn(8, 1, 8, 8))
    torch.nn.functional.cross_entropy(
        model[4](hidden.double()), torch.randint(3, (8,))).backward()
    optimizer.step()
while rank == 0 and cr.size() > 1 and not os.path.exists("rank 1 is done"):
    time.sleep(0.01)
open(f"rank {rank} is done", "w").close()
cr.broadcast_parameters(model.named_parameters(), root_rank=0)
if rank == 0:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "before": before}, "trained.pt")
"""
)


def plain_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    names: dict[str, Any] = {}
    exec(MODEL, names)  # noqa: S102 - as the ranks do
    return names["model"], names["plain"]


def script(launcher: Any, steps: int) -> str:
    return str(launcher.script(TRAINING.replace("STEPS", str(steps))))


def trained(launcher: Any) -> dict[str, Any]:
    return dict(torch.load(Path(launcher.folder) / "trained.pt"))


@pytest.fixture
def checkpoints(launcher, tmp_path) -> Path:
    """Of two ranks and two servers."""
    folder = tmp_path / "new" / "checkpoints"
    options = ["--checkpoint-dir", str(folder), "--checkpoint-every", "7"]
    done = launcher.run("-np", "2", "--ps", "2", *options, script(launcher, 20))
    assert done.returncode == 0, done.stderr
    return folder


def test_plain_torch_and_other_servers_go_on_with_it(launcher, checkpoints, tmp_path):
    then = trained(launcher)
    names = sorted(path.name for path in checkpoints.glob("checkpoint-*"))
    assert len(names) == 2 and all((checkpoints / name / "manifest").exists() for name in names)

    model, optimizer = plain_model()
    with pytest.raises(InvalidArgumentError, match=r"the checkpoint has no parameter '4\.bias'"):
        ps.load_checkpoint(checkpoints, model, optimizer)  # which was frozen
    saved = ps.load_checkpoint(checkpoints, model, optimizer, strict=False)
    torch.save(saved, tmp_path / "saved.pt")
    assert torch.load(tmp_path / "saved.pt")["model"].keys() == saved["model"].keys()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, then["model"][name]), name
    now, state = optimizer.state_dict()["state"], then["optimizer"]["state"]
    assert now.keys() == state.keys()
    for position, values in state.items():
        assert values.keys() == now[position].keys()
        assert all(torch.equal(now[position][key], value) for key, value in values.items())
        assert values["step"] == 40

    done = launcher.run("-np", "1", "--ps", "3", "--restore", str(checkpoints), script(launcher, 1))
    assert done.returncode == 0, done.stderr
    assert f"server 2 goes on from the checkpoint {checkpoints}" in done.stderr
    again = trained(launcher)
    for name, value in again["before"].items():
        assert torch.equal(value, then["model"][name]), name
    assert again["optimizer"]["state"][0]["step"] == 41


def test_what_does_not_fit_is_refused(launcher, checkpoints, tmp_path):
    model, optimizer = plain_model()
    with pytest.raises(InvalidArgumentError, match="no complete checkpoint in"):
        ps.load_checkpoint(tmp_path)
    with pytest.raises(InvalidArgumentError, match="give the model too"):
        ps.load_checkpoint(checkpoints, optimizer=optimizer)
    with pytest.raises(InvalidArgumentError, match=r"the model has no parameter '2\.weight'"):
        ps.load_checkpoint(checkpoints, torch.nn.ReLU())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for wrong, why in (
        (
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            "is sgd with momentum, and the",
        ),
        (torch.optim.Adam(model.parameters(), amsgrad=True), "is adam with amsgrad, and the"),
        (torch.optim.NAdam(model.parameters()), "NAdam is not one of SGD, Adam"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            ps.load_checkpoint(checkpoints, model, wrong, strict=False)
    half = copy.deepcopy(model).half()
    with pytest.raises(
        InvalidArgumentError, match=r"is torch\.float16 in the model and torch\.float"
    ):
        ps.load_checkpoint(checkpoints, half, strict=False)
    more = torch.nn.Sequential(*model, torch.nn.Linear(3, 3))
    with pytest.raises(InvalidArgumentError, match="the checkpoint has no parameter"):
        ps.evaluate(more, lambda: 0.0, checkpoints)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model[0] = torch.nn.Conv2d(1, 4, 5)
    with pytest.raises(InvalidArgumentError, match=r"'0\.weight' is \(4, 1, 5, 5\) in the model"):
        ps.load_checkpoint(checkpoints, model)
    newest = max(checkpoints.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    part = newest / "part-1-of-2"
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(CirandaError, match=f"{part} cannot be used: it is damaged, or cut off"):
        ps.load_checkpoint(checkpoints)
    done = launcher.run("-np", "1", "--ps", "1", "--restore", str(newest), script(launcher, 1))
    assert done.returncode != 0
    assert f"{part} cannot be used: it is damaged, or cut off" in done.stderr
