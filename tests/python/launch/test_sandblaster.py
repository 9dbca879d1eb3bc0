"""Sandblaster L-BFGS: breaks when it ends elsewhere than torch's, or when a killed process or a
portion that was given twice changes where it ends."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ciranda.torch.ps import sandblaster

pytestmark = pytest.mark.usefixtures("warm_start")

SAMPLES = 400


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, 20, generator=generator)
    scores = inputs @ torch.randn(20, 5, generator=generator)
    return inputs, (scores + torch.randn(SAMPLES, 5, generator=generator)).argmax(1)


def logistic() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(20, 5)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))


MODELS = {"logistic": (logistic, 1e-3), "mlp": (mlp, 0.0)}  # and how much its weights cost


def loss_of(model: nn.Module, cost: float) -> torch.Tensor:
    inputs, labels = data()
    weights = sum((each.square().sum() for each in model.parameters()), torch.zeros(()))
    return F.cross_entropy(model(inputs), labels) + cost * weights


def loss_of_torch(name: str) -> float:
    make, cost = MODELS[name]
    model = make()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=200, history_size=10, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, cost)
        loss.backward()
        return loss

    optimizer.step(closure)
    return loss_of(model, cost).item()


class Vectors:
    """What servers do, of a model here."""

    def __init__(self, model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
        self._parameters = list(model.parameters())
        self._loss = loss
        self.vectors = {0: torch.cat([each.detach().flatten() for each in self._parameters])}

    def work(self, sums: list[Any], dots: list[tuple[int, int]]) -> list[float]:
        zeros = torch.zeros_like(self.vectors[0], dtype=torch.float64)
        for into, terms in sums:
            total = zeros.clone()
            for vector, factor in terms:
                total += factor * self.vectors.get(vector, zeros).double()
            self.vectors[into] = total.float()
        return [float(self.vectors[a].double() @ self.vectors[b].double()) for a, b in dots]

    def evaluate(self) -> float:
        at = 0
        for each in self._parameters:
            each.data = self.vectors[0][at : at + each.numel()].view_as(each)
            each.grad = None
            at += each.numel()
        loss = self._loss()
        loss.backward()
        self.vectors[1] = self.vectors[1] + torch.cat(
            [each.grad.flatten() for each in self._parameters if each.grad is not None]
        )
        return loss.item()


@pytest.mark.parametrize("name", MODELS)
def test_it_ends_where_torch_does(name: str) -> None:
    make, cost = MODELS[name]
    model = make()
    vectors = Vectors(model, lambda: loss_of(model, cost))
    result = sandblaster.minimize(
        vectors.work,
        vectors.evaluate,
        max_iter=200,
        history=10,
        tolerance_grad=1e-7,
        tolerance_change=1e-9,
    )
    assert abs(result.loss - loss_of_torch(name)) < 1e-4
    assert result.loss == pytest.approx(loss_of(model, cost).item(), abs=1e-6)
    assert result.iterations <= result.evaluations < 3 * result.iterations


@pytest.mark.parametrize("history", [1, 3, 20])
def test_each_length_of_history_finds_the_minimum(history: int) -> None:
    """Of a quadratic whose curvatures differ by 1000, and of Rosenbrock's valley."""
    curvatures = torch.logspace(0, 3, 12)
    x = nn.Parameter(torch.ones(12))
    bowl = nn.ParameterList([x])
    cases = [(bowl, lambda: 0.5 * (curvatures * x * x).sum())]
    y = nn.Parameter(torch.tensor([-1.2, 1.0]))
    cases.append((nn.ParameterList([y]), lambda: 100 * (y[1] - y[0] ** 2) ** 2 + (1 - y[0]) ** 2))
    for model, loss in cases:
        vectors = Vectors(model, loss)
        result = sandblaster.minimize(
            vectors.work,
            vectors.evaluate,
            max_iter=300,
            history=history,
            tolerance_grad=1e-5,
            tolerance_change=0.0,
        )
        assert result.loss < 1e-6, result


def test_a_loss_that_is_not_a_number_is_stepped_back_from() -> None:
    """The logarithm is none left of zero, where a step of so little curvature leads."""
    x = nn.Parameter(torch.tensor([30.0]))
    seen = []

    def loss() -> torch.Tensor:
        seen.append(x.item())
        return (x - torch.log(x)).sum()

    vectors = Vectors(nn.ParameterList([x]), loss)
    result = sandblaster.minimize(
        vectors.work,
        vectors.evaluate,
        max_iter=50,
        history=5,
        tolerance_grad=1e-5,
        tolerance_change=0.0,
    )
    assert result.loss == pytest.approx(1.0, abs=1e-5)
    assert math.isfinite(result.gradient_norm)
    assert min(seen) < 0


PROGRAM = f"""
import os, signal, sys, time, torch, ciranda.torch as cr
from ciranda.torch import ps
from torch.nn import functional as F
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_sandblaster as tests

cr.init()
make, cost = tests.MODELS["NAME"]
died = os.path.join(os.path.dirname(os.path.abspath(__file__)), "died")
def die_once(who):
    if "--kill" in sys.argv and not os.path.exists(died + who):
        open(died + who, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

@ps.per_worker
def problem():
    model = make()
    return model, ps.Sandblaster(model.named_parameters()), tests.data()

@ps.task(copies=2)
def portion(first, count):
    model, gradients, (inputs, labels) = problem()
    model.zero_grad()
    part = slice(first, first + count)
    loss = F.cross_entropy(model(inputs[part]), labels[part], reduction="sum") / len(labels)
    if first == 0:
        loss = loss + cost * sum(each.square().sum() for each in model.parameters())
    loss.backward()
    gradients.push()
    portion_count[0] += 1
    if portion_count[0] == 10:
        die_once("worker")
    if cr.rank() == 1:
        time.sleep(0.01)  # it is slower
    return loss.item()
portion_count = [0]

def main():
    evaluations = [0]
    def portions():
        evaluations[0] += 1
        if evaluations[0] == 7:
            die_once("coordinator")
        return [ps.schedule(portion, first, 100) for first in range(0, tests.SAMPLES, 100)]
    result = ps.lbfgs(portions, max_iter=200)
    print(f"loss {{result.loss:.9f}} after {{result.iterations}}")

ps.run(main)
"""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("logistic", ["--kill"]),
        pytest.param("mlp", [], marks=pytest.mark.soak),
    ],
)
def test_a_job_ends_where_torch_does(
    launcher: Any, tmp_path: Path, name: str, options: list[str]
) -> None:
    program = launcher.folder / "train.py"
    program.write_text(PROGRAM.replace("NAME", name))
    kept = ("--ps-dir", str(tmp_path / "state"), "--restarts", "2")
    done = launcher.run("-np", "2", "--ps", "2", "--coordinator", *kept, str(program), *options)
    assert done.returncode == 0, done.stderr
    found = re.search(r"loss ([\d.]+) after (\d+)", done.stdout)
    assert found, done.stdout
    assert abs(float(found[1]) - loss_of_torch(name)) < 1e-4
    if options:
        assert "coordinator was ended by Killed" in done.stderr
        assert re.search(r"rank \d was ended by Killed", done.stderr)
