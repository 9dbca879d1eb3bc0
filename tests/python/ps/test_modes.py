"""Training with parameter servers: what each mode gives, for each optimizer, and who waits."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from ranks import run_ranks, values_of

import ciranda.torch as cr
from ciranda.torch import ps

MODES = {
    "async": ps.Async(),
    "ahead": ps.Async(ahead=1),
    "scale": ps.Async(policy="scale"),
    "ssp0": ps.SSP(0),
    "ssp2": ps.SSP(2),
    "sync": ps.Sync(),
}
OPTIMIZERS: dict[str, Any] = {
    # Powers of two: products are exact, and so torch's fused multiply-add rounds as ours.
    "sgd": lambda p: torch.optim.SGD(p, lr=0.125),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.125, momentum=0.5, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3, dampening=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.3, centered=True),
    "lion": lambda p: cr.optim.Lion(p, lr=1e-3, weight_decay=0.1),
    "adamax": torch.optim.Adamax,
}
STEPS = 100


def make_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 40), torch.nn.Tanh(), torch.nn.Linear(40, 4))


def batches(size: int) -> Any:
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(8, 4, generator=generator)
    for _ in range(STEPS):
        x = torch.randn(16 * size, 8, generator=generator)
        yield x, (x @ weights).argmax(1)


def train(net: torch.nn.Module, optimizer: Any, shard: slice, size: int) -> None:
    for x, y in batches(size):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x[shard]), y[shard]).backward()
        optimizer.step()


def serial(optimizer: str, size: int = 1) -> tuple[list[torch.Tensor], dict[str, Any]]:
    net = make_net()
    plain = OPTIMIZERS[optimizer](net.parameters())
    train(net, plain, slice(None), size)
    return [parameter.detach() for parameter in net.parameters()], plain.state_dict()


def largest(ours: Any, theirs: Any) -> float:
    """The largest error, relative where values are above 1."""
    pairs = [(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(ours, theirs, strict=True)]
    return max(((a - b).abs() / b.abs().clamp(min=1)).max().item() for a, b in pairs)


def off_from_serial(mode: str, optimizer: str, update_on: str) -> list[float]:
    """How far this worker's parameters and state are from those of one process that saw it all."""
    cr.init()
    size = cr.size()
    net = make_net()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(cr.rank())  # rank 0's are everybody's
    distributed = cr.DistributedOptimizer(
        OPTIMIZERS[optimizer](net.parameters()),
        net.named_parameters(),
        ps=replace(MODES[mode], update_on=update_on),
    )
    train(net, distributed, slice(16 * cr.rank(), 16 * (cr.rank() + 1)), size)
    expected, state = serial(optimizer, size)
    ours = distributed.state_dict()["state"]
    assert ours.keys() == state["state"].keys()
    off = 0.0
    for index, held in state["state"].items():
        names = [name for name in held if held[name] is not None]
        off = max(off, largest([ours[index][n] for n in names], [held[n] for n in names]))
    return [largest(net.parameters(), expected), off]


@pytest.mark.parametrize("mode", ["async", "ssp0", "sync"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_one_worker_trains_as_plain_torch_to_the_bit(mode: str, optimizer: str) -> None:
    args = (mode, optimizer, "server")
    assert values_of(run_ranks(off_from_serial, 1, args=args, servers=2)) == [[0.0, 0.0]]


@pytest.mark.parametrize("optimizer", ["decay", "adam", "adamw", "adagrad", "rmsprop"])
def test_each_rule_is_torchs(optimizer: str) -> None:
    args = ("async", optimizer, "server")
    ((parameters, state),) = values_of(run_ranks(off_from_serial, 1, args=args, servers=2))
    assert parameters < 1e-6
    assert state < 1e-5


@pytest.mark.parametrize("optimizer", ["adamax", "momentum"])
def test_any_optimizer_steps_on_the_worker(optimizer: str) -> None:
    args = ("async", optimizer, "worker")
    ((parameters, state),) = values_of(run_ranks(off_from_serial, 1, args=args, servers=2))
    assert parameters < 1e-6
    assert state < 1e-5


@pytest.mark.parametrize(("size", "servers"), [(2, 1), (3, 2)])
def test_rounds_train_as_one_process_with_the_joined_batch(size: int, servers: int) -> None:
    args = ("sync", "decay", "server")
    for parameters, state in values_of(
        run_ranks(off_from_serial, size, args=args, servers=servers)
    ):
        assert parameters < 1e-6
        assert state < 1e-5


def served_sgd(net: torch.nn.Module, mode: ps.Mode) -> Any:
    return cr.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.05), net.named_parameters(), ps=mode
    )


def observed(mode: str) -> Any:
    """What was pushed, how stale it was, and what is left of the loss."""
    cr.init()
    net = make_net()
    optimizer = served_sgd(net, MODES[mode])
    train(net, optimizer, slice(16 * cr.rank(), 16 * (cr.rank() + 1)), cr.size())
    stats = ps.stats()
    return [stats["worker"]["pushes"]["applied"], stats["servers"][0]["staleness"]]


@pytest.mark.parametrize("mode", MODES)
def test_every_push_of_many_workers_counts(mode: str) -> None:
    values = values_of(run_ranks(observed, 3, args=(mode,), servers=2))
    assert [pushes for pushes, _ in values] == [STEPS] * 3
    if mode == "sync":
        assert all(sum(staleness[1:]) == 0 for _, staleness in values)
    if mode == "ssp0":  # of a round's three the last has seen none of the others'
        assert all(sum(staleness[3:]) == 0 for _, staleness in values)
    if mode == "ssp2":  # (3 - 1) * (2 * 2 + 1)
        assert all(sum(staleness[6:]) == 0 for _, staleness in values)


def unequal_parts() -> list[int]:
    """Of an epoch's ten steps rank 0 makes six and rank 1 four."""
    cr.init()
    net = make_net()
    optimizer = served_sgd(net, MODES["async"])
    for _ in range((6, 4)[cr.rank()]):
        optimizer.zero_grad()
        net(torch.ones(1, 8)).sum().backward()
        optimizer.step()
    while (version := ps.stats()["servers"][0]["version"]) < 10:
        time.sleep(0.01)
    return [version, ps.stats()["worker"]["pushes"]["applied"]]


def test_an_epoch_may_be_split_unequally() -> None:
    assert values_of(run_ranks(unequal_parts, 2, servers=2)) == [[10, 6], [10, 4]]


def some_have_no_gradient() -> list[float]:
    """Each rank uses one of two parameters, in turns; both kinds: born in place, and copied."""
    cr.init()
    large = torch.nn.Parameter(torch.zeros(5_000))
    turned = torch.nn.Parameter(torch.zeros(50, 100).t())
    other = torch.nn.Parameter(torch.zeros(5_000))
    named = [("large", large), ("turned", turned), ("other", other)]
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD([p for _, p in named], lr=1.0), named, ps=ps.Sync()
    )
    for step in range(4):
        optimizer.zero_grad()
        if (step + cr.rank()) % 2 == 0:
            (large.sum() + turned.sum()).backward()
        else:
            other.sum().backward()
        optimizer.step()
    values = [sorted({v.item() for v in p.detach().flatten()}) for _, p in named]
    assert all(len(each) == 1 for each in values), values
    return [each[0] for each in values]


def test_in_a_round_who_has_no_gradient_adds_zeros() -> None:
    expected = [-2.0, -2.0, -2.0]  # half of the workers, four times
    assert values_of(run_ranks(some_have_no_gradient, 2, servers=2)) == [expected] * 2
