"""A model whose one number says how many pushes are in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

import ciranda.torch as cr
from ciranda.torch import ps

MODES = {"async": ps.Async(), "ssp": ps.SSP(0), "sync": ps.Sync()}


def make(mode: str) -> tuple[torch.nn.Parameter, Any]:
    """A number that each applied push takes 1 from, or in rounds each round."""
    parameter = torch.nn.Parameter(torch.zeros(40_000))
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=1.0), [("x", parameter)], ps=MODES[mode]
    )
    return parameter, optimizer


def step(parameter: torch.nn.Parameter, optimizer: Any) -> None:
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def told(name: str) -> bool:
    return (Path(os.environ["CIRANDA_TEST_FOLDER"]) / f"told-{name}").exists()
