"""What scripts do with an optimizer does here what it does in plain torch."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import run_ranks, values_of

import ciranda.torch as cr
from ciranda.errors import InvalidArgumentError
from ciranda.torch import ps


class Net(torch.nn.Module):
    """Has what a parameter can be: large, tiny, channels last, frozen, unused, sparse, empty."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(50, 16, sparse=True)
        self.conv = torch.nn.Conv2d(1, 8, 3).to(memory_format=torch.channels_last)
        self.large = torch.nn.Linear(8 * 14 * 14 + 16, 64)
        self.unused = torch.nn.Linear(3, 3)
        self.frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
        self.empty = torch.nn.Parameter(torch.ones(0))
        self.last = torch.nn.Linear(64, 4)
        self.double_scale = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, words: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(self.conv(images)).flatten(1)
        read = self.table(words).mean(1)
        hidden = torch.relu(self.large(torch.cat([seen, read], 1)))
        scores: torch.Tensor = self.last(hidden) * self.double_scale.float()
        return scores


def loss_of(net: torch.nn.Module, generator: torch.Generator) -> torch.Tensor:
    words = torch.randint(50, (8, 5), generator=generator)
    images = torch.randn(8, 1, 16, 16, generator=generator)
    classes = torch.randint(4, (8,), generator=generator)
    return torch.nn.functional.cross_entropy(net(words, images), classes)


def plainly(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(net, generator).backward()
        optimizer.step()


def kept_zeros(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    for _ in range(6):
        optimizer.zero_grad(set_to_none=False)
        loss_of(net, generator).backward()
        optimizer.step()


def accumulating(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(3):
            loss_of(net, generator).backward()
        optimizer.step()


def never_zeroed(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    for _ in range(4):
        loss_of(net, generator).backward()
        optimizer.step()


def clipping(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(net, generator).backward()
        torch.nn.utils.clip_grad_norm_(net.last.parameters(), 0.01)
        optimizer.step()


def scheduled(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(4):
        plainly(net, optimizer, generator)
        scheduler.step()


def with_a_closure(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, generator)
        loss.backward()
        return loss

    for _ in range(4):
        assert optimizer.step(closure) is not None


def gradients_are_held(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    held = []
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(net, generator).backward()
        optimizer.step()
        held.append((net.large.weight.grad, net.large.weight.grad.clone()))
    for gradient, copied in held:
        assert torch.equal(gradient, copied)


def gradients_are_replaced(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(net, generator).backward()
        for parameter in (net.large.weight, net.last.bias):
            parameter.grad = parameter.grad * 2
        net.last.weight.grad = None
        optimizer.step()


def unfrozen(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    net.large.requires_grad_(False)
    plainly(net, optimizer, generator)
    net.large.requires_grad_(True)
    plainly(net, optimizer, generator)


def scaled(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for index in range(6):
        optimizer.zero_grad()
        loss = loss_of(net, generator)
        if index == 3:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()


def read_by_others(net: Any, optimizer: Any, generator: torch.Generator) -> None:
    copies = []
    for _ in range(3):
        plainly(net, optimizer, generator)
        copies.append(copy.deepcopy(net.state_dict()))
    assert not torch.equal(copies[0]["large.weight"], copies[1]["large.weight"])


WAYS: list[Callable[[Any, Any, torch.Generator], None]] = [
    plainly,
    kept_zeros,
    accumulating,
    never_zeroed,
    clipping,
    scheduled,
    with_a_closure,
    gradients_are_held,
    gradients_are_replaced,
    unfrozen,
    scaled,
    read_by_others,
]


def groups(net: Net) -> list[dict[str, Any]]:
    """Two rules, in an order of their own."""
    rest = [p for name, p in net.named_parameters() if not name.startswith("large")]
    rest = [parameter for parameter in rest if parameter is not net.empty]
    return [
        {"params": rest, "lr": 0.05},
        {"params": list(net.large.parameters()), "lr": 0.02},
        {"params": [net.empty], "lr": 0.1},  # of a table without elements
    ]


def off_by(way: str, update_on: str, mode: str) -> float:
    act = next(each for each in WAYS if each.__name__ == way)
    if not cr.is_initialized():
        cr.init()
    net, plain_net = Net(), Net()
    sgd = {"momentum": 0.5} if way != "plainly" else {}
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD(groups(net), **sgd),  # type: ignore[arg-type]
        net.named_parameters(),
        ps=(ps.Sync if mode == "sync" else ps.Async)(update_on=update_on),
    )
    act(net, optimizer, torch.Generator().manual_seed(1))
    optimizer.state_dict()
    plain = torch.optim.SGD(groups(plain_net), **sgd)  # type: ignore[arg-type]
    act(plain_net, plain, torch.Generator().manual_seed(1))
    pairs = zip(net.parameters(), plain_net.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs if a.numel())


@pytest.mark.parametrize("way", [way.__name__ for way in WAYS])
def test_a_script_does_what_it_does_in_plain_torch(way: str) -> None:
    assert values_of(run_ranks(off_by, 1, args=(way, "server", "sync"), servers=2))[0] < 1e-5


@pytest.mark.parametrize("way", ["plainly", "scheduled", "with_a_closure", "unfrozen"])
def test_so_it_does_where_the_worker_steps(way: str) -> None:
    assert values_of(run_ranks(off_by, 1, args=(way, "worker", "async"), servers=2))[0] < 1e-5


def clipped_by_option(mode: str) -> list[float]:
    cr.init()
    norms = []
    net, plain_net = torch.nn.Linear(20, 30), torch.nn.Linear(20, 30)
    plain_net.load_state_dict(net.state_dict())
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.1),
        net.named_parameters(),
        ps=ps.Sync() if mode == "sync" else ps.Async(),
        max_grad_norm=0.5,
    )
    plain = torch.optim.SGD(plain_net.parameters(), lr=0.1)
    x = torch.randn(40, 20)
    for _ in range(3):
        for each in (net, plain_net):
            each.zero_grad()
            each(x).square().sum().backward()
        optimizer.step()
        norm = torch.nn.utils.clip_grad_norm_(plain_net.parameters(), 0.5)
        plain.step()
        norms.append(abs(optimizer.grad_norm / norm.item() - 1))
    return [*norms, (net.weight - plain_net.weight).abs().max().item()]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_gradients_are_clipped_as_torch_does(mode: str) -> None:
    (off,) = values_of(run_ranks(clipped_by_option, 1, args=(mode,), servers=2))
    assert max(off) < 1e-5


def half_precision() -> float:
    cr.init()
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
    other = copy.deepcopy(net)
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.125),
        net.named_parameters(),
        ps=ps.Async(),
    )
    plain = torch.optim.SGD(other.parameters(), lr=0.125)
    for _ in range(3):
        for each, stepped in ((net, optimizer), (other, plain)):
            stepped.zero_grad()
            each(torch.ones(4, 64, dtype=torch.bfloat16)).float().sum().backward()
            stepped.step()
    return (net.weight - other.weight).abs().max().item()


def test_half_precision_trains() -> None:
    assert values_of(run_ranks(half_precision, 1, servers=1))[0] < 1e-2


def average_and_stats() -> list[Any]:
    cr.init()
    average = ps.average(float(cr.rank()), "loss")
    net = torch.nn.Linear(100, 100)
    optimizer = cr.DistributedOptimizer(
        torch.optim.Adam(net.parameters()), net.named_parameters(), ps=ps.Sync()
    )
    for _ in range(5):
        optimizer.zero_grad()
        net(torch.ones(1, 100)).sum().backward()
        optimizer.step()
    cr.broadcast_parameters(net.state_dict(), root_rank=0)
    cr.broadcast_optimizer_state(optimizer, root_rank=0)
    stats = ps.stats()
    return [average, stats]


def test_averages_and_stats_tell_what_there_is() -> None:
    values = values_of(run_ranks(average_and_stats, 2, servers=2))
    assert {average for average, _ in values} <= {0.0, 0.5, 1.0}
    assert 0.5 in {average for average, _ in values}  # of whoever was last
    for _, stats in values:
        worker, servers = stats["worker"], stats["servers"]
        assert worker["pushes"] == {"applied": 5, "duplicate": 0, "stale": 0, "late": 0}
        assert worker["pulls"] == 2
        assert worker["waiting_s"] >= worker["waiting_for_workers_s"] >= 0
        assert worker["pushed_bytes"] >= 5 * 4 * 10_100
        assert len(servers) == 2
        for server in servers:
            assert server["version"] == 5
            assert server["pushes"]["applied"] == 10
            assert server["staleness"][0] == 10
            assert [each["pushes"] for each in server["workers"]] == [5, 5]
            assert server["parameter_bytes"] > 0
            assert server["busy_s"] > 0
        held = sum(server["held_bytes"] for server in servers)
        assert 3 * 4 * 10_100 <= held <= 3 * 4 * 10_100 * 1.1


def again_after_shutdown() -> list[float]:
    cr.init()
    net = torch.nn.Linear(4, 4)
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.5),
        net.named_parameters(),
        ps=ps.Async(),
    )
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    value = net.weight[0, 0].item()
    cr.shutdown()
    with torch.no_grad():  # the parameters are the program's again
        net.weight.add_(1)
    return [value, net.weight[0, 0].item()]


def test_the_parameters_stay_after_shutdown() -> None:
    with_servers = values_of(run_ranks(again_after_shutdown, 1, servers=1))[0]
    assert with_servers[1] == pytest.approx(with_servers[0] + 1)


class Halves(torch.optim.Optimizer):
    """Has no learning rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.5)


def halved() -> float:
    cr.init()
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = cr.DistributedOptimizer(
        Halves([parameter]),
        [("x", parameter)],
        ps=ps.Async(update_on="worker"),
    )
    optimizer.step()
    return parameter.sum().item()


def test_a_worker_steps_without_a_learning_rate() -> None:
    assert values_of(run_ranks(halved, 1, servers=1)) == [1.5]


def off_with_groups(alike: bool) -> float:
    """One for each of many parameters: by which they are off."""
    cr.init()
    generator = torch.Generator().manual_seed(3)
    values = [torch.randn(1 + i % 3, generator=generator) for i in range(300)]
    plain = [torch.nn.Parameter(each.clone()) for each in values]
    ours = [torch.nn.Parameter(each.clone()) for each in values]

    def made(parameters: list[Any]) -> torch.optim.Optimizer:
        return torch.optim.Adam(
            [
                {"params": [p], "lr": 0.1 if alike else 0.1 + i / 1000, "weight_decay": i % 2 / 10}
                for i, p in enumerate(parameters)
            ]
        )

    named = [(f"p{i}", each) for i, each in enumerate(ours)]
    optimizer = cr.DistributedOptimizer(made(ours), named, ps=ps.Async())
    pairs = ((plain, made(plain)), (ours, optimizer))
    factors = [functools.partial(pow, 0.9 + i / 4000) for i in range(300)]
    schedulers = [torch.optim.lr_scheduler.LambdaLR(by, factors) for _, by in pairs]
    for step in range(3):
        for parameters, by in pairs:
            by.zero_grad()
            used = [p for i, p in enumerate(parameters) if (i + step) % 4]
            sum((p - 1).square().sum() for p in used).backward()  # type: ignore[union-attr]
            by.step()
        for each in schedulers:
            each.step()
    return max((a - b).abs().max().item() for a, b in zip(ours, plain, strict=True))


@pytest.mark.parametrize("alike", [True, False])
def test_each_parameter_may_have_a_group(alike: bool) -> None:
    assert values_of(run_ranks(off_with_groups, 1, args=(alike,), servers=2))[0] < 1e-6


def in_one_memory() -> list[Any]:
    """Neighbours, and columns of one matrix; then some that overlap."""
    cr.init()

    def views() -> list[torch.nn.Parameter]:
        flat, matrix = torch.arange(10.0), torch.ones(4, 2)
        parts = [flat[:6], flat[6:], matrix[:, 0], matrix[:, 1]]
        return [torch.nn.Parameter(each) for each in parts]

    flat = torch.ones(10)
    overlapping = [torch.nn.Parameter(flat[:6]), torch.nn.Parameter(flat[5:])]
    with pytest.raises(InvalidArgumentError, match=r"group\.0\.param\.0' and .* overlap in"):
        cr.DistributedOptimizer(torch.optim.SGD(overlapping, lr=0.1), ps=ps.Async())
    plain, ours = views(), views()
    optimizer = cr.DistributedOptimizer(torch.optim.SGD(ours, lr=0.1), ps=ps.Async())
    for parameters, by in ((plain, torch.optim.SGD(plain, lr=0.1)), (ours, optimizer)):
        for _ in range(3):
            by.zero_grad()
            sum(each.square().sum() for each in parameters).backward()  # type: ignore[union-attr]
            by.step()
    return [(a - b).abs().max().item() for a, b in zip(ours, plain, strict=True)]


def test_parameters_may_lie_in_one_memory() -> None:
    assert max(values_of(run_ranks(in_one_memory, 1, servers=2))[0]) < 1e-6
