"""Downpour SGD: breaks when what is pushed, fetched or stepped alone is not as in the paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ps.learning import right_after_training
from ranks import run_ranks, values_of

import ciranda.torch as cr
from ciranda.torch import ps

STEPS = 13
LR = 0.1


def make_net() -> torch.nn.Module:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Embedding(20, 8, sparse=True), torch.nn.Flatten(), torch.nn.Linear(32, 3)
    )
    net.unused = torch.nn.Parameter(torch.ones(3))
    return net


def gradients(net: torch.nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    words = torch.randint(20, (8, 4), generator=generator)
    classes = torch.randint(3, (8,), generator=generator)
    torch.nn.functional.cross_entropy(net[:3](words), classes).backward()  # type: ignore[index]


def paper(n_push: int, n_fetch: int, max_norm: float | None) -> list[torch.Tensor]:
    """Algorithm 7.1 of Dean et al. 2012 with Adagrad as its server, for one worker."""
    server, net = make_net(), make_net()
    adagrad = torch.optim.Adagrad(server.parameters(), lr=LR)
    accrued: list[Any] = [None for _ in net.parameters()]
    for step in range(STEPS):
        if step % n_fetch == 0:
            net.load_state_dict(server.state_dict())
        net.zero_grad()
        gradients(net, step)
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to_dense()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        with torch.no_grad():
            for i, parameter in enumerate(net.parameters()):
                if parameter.grad is not None:
                    had = 0 if accrued[i] is None else accrued[i]
                    accrued[i] = had + parameter.grad
                    parameter.sub_(parameter.grad, alpha=LR)
        if (step + 1) % n_push == 0 or step + 1 == STEPS:
            for parameter, gradient in zip(server.parameters(), accrued, strict=True):
                parameter.grad = gradient
            adagrad.step()
            accrued = [None for _ in accrued]
    return [parameter.detach() for parameter in server.parameters()]


def off_from_the_paper(n_push: int, n_fetch: int, max_norm: float | None) -> dict[str, Any]:
    cr.init()
    net = make_net()
    optimizer = cr.DistributedOptimizer(
        torch.optim.Adagrad(net.parameters(), lr=LR),
        net.named_parameters(),
        ps=ps.Downpour(n_push, n_fetch),
        max_grad_norm=max_norm,
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        gradients(net, step)
        optimizer.step()
    cr.broadcast_parameters(net.named_parameters(), root_rank=0)
    expected = paper(n_push, n_fetch, max_norm)
    pushes = ps.stats()["worker"]["pushes"]["applied"]
    states = optimizer.state_dict()["state"]
    return {
        "off": max(
            (ours - theirs).abs().max().item()
            for ours, theirs in zip(net.parameters(), expected, strict=True)
        ),
        "pushes": pushes,
        "step": max(state["step"].item() for state in states.values()),
    }


@pytest.mark.parametrize(
    ("n_push", "n_fetch", "max_norm"),
    [(1, 1, None), (2, 3, None), (3, 2, None), (5, 5, None), (4, 1, 0.5), (1, 4, None)],
)
def test_one_worker_does_what_the_paper_says(
    n_push: int, n_fetch: int, max_norm: float | None
) -> None:
    ranks = run_ranks(off_from_the_paper, 1, args=(n_push, n_fetch, max_norm), servers=2)
    (result,) = values_of(ranks)
    assert result["off"] < 1e-6
    assert result["pushes"] == result["step"] == -(-STEPS // n_push)


def right_of_two(n_push: int, n_fetch: int) -> float:
    return right_after_training(
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1), ps.Downpour(n_push, n_fetch)
    )


def test_two_workers_learn() -> None:
    for right in values_of(run_ranks(right_of_two, 2, args=(5, 5), servers=2)):
        assert right > 0.9


@pytest.mark.parametrize("wrong", [{"n_push": 0}, {"n_fetch": -1}, {"n_push": 1.5}])
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"Downpour: {next(iter(wrong))} must be"):
        ps.Downpour(**wrong)
