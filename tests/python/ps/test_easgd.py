"""Elastic averaging: breaks when a worker and the servers come nearer by another way or amount."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ps.learning import right_after_training
from ranks import run_ranks, values_of

import ciranda.torch as cr
from ciranda.torch import ps

STEPS = 12
RATES = [0.05, 0.2]


def make_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def optimizer_of(net: Any) -> torch.optim.Optimizer:
    groups = [
        {"params": net[i].parameters(), "lr": lr} for i, lr in zip((0, 2), RATES, strict=True)
    ]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def step(net: torch.nn.Module, optimizer: Any, number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(8, 6, generator=generator)
    y = torch.randint(3, (8,), generator=generator)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(x), y).backward()
    optimizer.step()


def paper(rho: float, period: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Algorithm 1 of Zhang et al. 2015 for one worker, exchanging after each period: its
    parameters, and the centre's."""
    net, centre = make_net(), make_net()
    optimizer = optimizer_of(net)
    for number in range(STEPS):
        step(net, optimizer, number)
        if (number + 1) % period:
            continue
        with torch.no_grad():
            for group in optimizer.param_groups:
                for own in group["params"]:
                    (at,) = [i for i, p in enumerate(net.parameters()) if p is own]
                    theirs = list(centre.parameters())[at]
                    nearer = rho * group["lr"] * (own - theirs)
                    own -= nearer  # noqa: PLW2901 - in place
                    theirs += nearer
    return list(net.parameters()), list(centre.parameters())


def off_from_the_paper(rho: float, period: int) -> list[float]:
    cr.init()
    net = make_net()
    optimizer = cr.DistributedOptimizer(
        optimizer_of(net), net.named_parameters(), ps=ps.EASGD(rho, period)
    )
    for number in range(STEPS):
        step(net, optimizer, number)
    off = []
    for expected in paper(rho, period):
        pairs = zip(net.parameters(), expected, strict=True)
        off.append(max((ours - theirs).abs().max().item() for ours, theirs in pairs))
        cr.broadcast_parameters(net.named_parameters(), root_rank=0)
    return off


@pytest.mark.parametrize(("rho", "period"), [(1.0, 1), (4.5, 3), (5.0, 5)])
def test_one_worker_does_what_the_paper_says(rho: float, period: int) -> None:
    (off,) = values_of(run_ranks(off_from_the_paper, 1, args=(rho, period), servers=2))
    assert max(off) < 1e-6


def right_of_two(rho: float, period: int) -> float:
    return right_after_training(
        lambda parameters: torch.optim.Adam(parameters, lr=0.02), ps.EASGD(rho, period)
    )


def test_two_workers_learn() -> None:
    for right in values_of(run_ranks(right_of_two, 2, args=(0.45 / 0.02, 10), servers=2)):
        assert right > 0.9


def too_elastic() -> str:
    cr.init()
    net = make_net()
    optimizer = cr.DistributedOptimizer(optimizer_of(net), net.named_parameters(), ps=ps.EASGD(6.0))
    try:
        step(net, optimizer, 0)
    except ValueError as error:
        return str(error)
    return ""


def test_more_than_all_the_way_is_refused() -> None:
    (said,) = values_of(run_ranks(too_elastic, 1, servers=1))
    assert "EASGD's rho times the learning rate of parameter '2.weight' is 1.2" in said


@pytest.mark.parametrize("wrong", [{"rho": 0}, {"rho": "x"}, {"rho": 1, "period": 0}])
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"EASGD: {list(wrong)[-1]} must be"):
        ps.EASGD(**wrong)
