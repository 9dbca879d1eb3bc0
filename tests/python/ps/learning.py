"""What two workers learn by themselves, for modes in which parameters differ while they train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import ciranda.torch as cr
from ciranda.torch import ps


def right_after_training(make: Callable[[Any], torch.optim.Optimizer], mode: ps.Mode) -> float:
    """How many of 2,000 points this worker's model has right, with the servers' parameters."""
    cr.init()
    torch.manual_seed(3)
    net = torch.nn.Linear(8, 4)
    weights = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    optimizer = cr.DistributedOptimizer(make(net.parameters()), net.named_parameters(), ps=mode)
    generator = torch.Generator().manual_seed(cr.rank())
    for _ in range(400):
        x = torch.randn(32, 8, generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), (x @ weights).argmax(1)).backward()
        optimizer.step()
    cr.broadcast_parameters(net.named_parameters(), root_rank=0)
    x = torch.randn(2_000, 8, generator=torch.Generator().manual_seed(9))
    return (net(x).argmax(1) == (x @ weights).argmax(1)).float().mean().item()
