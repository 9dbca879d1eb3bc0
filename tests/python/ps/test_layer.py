"""Layers whose parameters servers alone hold: breaks when they train otherwise than the plain
model, when a worker holds more than a layer of it, or when a script goes on that they would train
wrong."""

from __future__ import annotations

import copy
import resource
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import run_ranks, values_of
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ciranda.torch as cr
from ciranda.errors import InvalidArgumentError
from ciranda.torch import ps
from ciranda.torch.ps import layer as layer_module

WIDTH, CLASSES, STEPS = 40, 5, 20  # 1,640 parameters: two rows


class Block(nn.Module):
    """With a parameter that gets no gradient, one that is frozen, a buffer, and parts that are
    computed again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.idle = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(WIDTH), requires_grad=False)
        self.again = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.within = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.linear(x)) + self.frozen
        x = x + checkpoint(self.again, x, use_reentrant=False)
        return x + checkpoint(self.within, x, use_reentrant=True)


class Model(nn.Module):
    def __init__(self, part: Callable[[Callable[[], nn.Module]], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = part(lambda: nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.block = part(Block)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x), inplace=True)
        x = F.relu(self.first(x), inplace=True)  # the same parameters twice
        return self.head(self.block(x))


def losses_of(model: nn.Module, *optimizers: Any) -> list[float]:
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        for optimizer in optimizers:
            optimizer.zero_grad()
        x = torch.randn(16, WIDTH, generator=generator)
        loss = F.cross_entropy(model(x), torch.randint(CLASSES, (16,), generator=generator))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


def wrapped(model: nn.Module, **options: Any) -> Any:
    options = {"ps": ps.Async()} | options
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return cr.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def trains_as_the_plain_model(kind: str) -> None:
    cr.init()
    rates: dict[str, Any] = {"lr": 0.1}
    if kind == "adagrad":
        rates |= {"initial_accumulator_value": 0.1}
    plain = Model(lambda make: make())
    after = torch.rand(1)
    model = Model(lambda make: ps.Layer(make, optimizer=kind, **rates))  # type: ignore[arg-type]
    optimizer = wrapped(model)
    assert torch.equal(torch.rand(1), after)
    held = ["first.on_servers", "block.on_servers"]
    named = sorted([*held, "head.weight", "head.bias"])
    assert sorted(name for name, _ in model.named_parameters()) == named
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name

    makers = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
    rest = [*plain.first.parameters(), *plain.block.parameters()]
    theirs = makers[kind](rest, **rates)
    expected = losses_of(plain, theirs, torch.optim.SGD(plain.head.parameters(), lr=0.1))
    assert losses_of(model, optimizer) == pytest.approx(expected, abs=1e-5)
    for name, value in plain.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, atol=1e-5), name
    assert all(bool(each.isnan().all()) for each in model.first.module.parameters())
    model.eval()
    plain.eval()
    x = torch.randn(4, WIDTH)
    with torch.inference_mode():
        assert torch.allclose(model(x), plain(x), atol=1e-4)
    model.train()
    losses_of(model, optimizer)


@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_they_train_as_the_plain_model(kind: str) -> None:
    for rank in run_ranks(trains_as_the_plain_model, 1, args=(kind,), servers=2):
        assert rank.exit_code == 0, rank.stderr


class Shared(nn.Module):
    """Computed twice by itself, with gradients that are sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, WIDTH, sparse=True)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.last(x) + self.table(torch.arange(3))
        for _ in range(2):
            x = x + checkpoint(self.linear, x, use_reentrant=True)
        return x


def only_layers() -> float:
    """By which a model without other parameters is off, also while it is frozen."""
    cr.init()
    torch.manual_seed(1)
    plain = nn.Sequential(Shared())
    torch.manual_seed(1)
    model = nn.Sequential(ps.Layer(Shared, lr=0.1))
    optimizer = wrapped(model)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    for trains in (True, False, True):
        for each, by in ((model, optimizer), (plain, theirs)):
            each.requires_grad_(trains)
            by.zero_grad()
            x = torch.ones(3, WIDTH, requires_grad=True)
            each(x).square().mean().backward()
            by.step()
    pairs = zip(model.state_dict().values(), plain.state_dict().values(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def test_a_model_may_be_of_layers_alone() -> None:
    assert values_of(run_ranks(only_layers, 1, servers=2))[0] < 1e-5


def grows_by_mb(frozen: bool) -> float:
    """A model of 403 MB, trained for two steps."""
    cr.init()
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1).step()  # imports 150 MB

    def make() -> nn.Module:
        return nn.Linear(1024, 1024, bias=False).requires_grad_(not frozen)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    blocks = [ps.Layer(make, lr=1e-4) for _ in range(96)]
    model = nn.Sequential(nn.Linear(1024, 1024), *blocks, nn.Linear(1024, 1))
    optimizer = wrapped(model)
    for _ in range(2):
        model(torch.randn(4, 1024)).sum().backward()
        optimizer.step()
    held = sum(each["held_bytes"] for each in ps.stats()["servers"])
    assert held > 96 * 4 * 1024 * 1024
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3


@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_of_400_mb_takes_no_worker_more_than_100_mb(frozen: bool) -> None:
    for rank in run_ranks(grows_by_mb, 2, args=(frozen,), servers=2):
        assert rank.exit_code == 0, rank.stderr
        assert rank.value < 100


def refuses(case: str) -> None:
    cr.init()
    head = nn.Linear(2, 1)

    def layer(make: Callable[[], Any] = lambda: nn.Linear(2, 2), **options: Any) -> ps.Layer:
        return ps.Layer(make, lr=0.1, **options)

    if case == "making":
        taken = nn.Linear(2, 2)
        layer(lambda: taken)
        for make, why in (
            (lambda: taken, "parameter 'weight' is in another Layer, too"),
            (nn.ReLU, "the module has no parameters"),
            (lambda: 3, "make\\(\\) returned 3 instead of a module"),
            (lambda: nn.Linear(2, 2).double(), "parameter 'weight' is torch.float64 on cpu"),
        ):
            with pytest.raises(InvalidArgumentError, match=why):
                layer(make)
        with pytest.raises(InvalidArgumentError, match="optimizer must be 'sgd' or 'adagrad'"):
            layer(optimizer="adam")
        with pytest.raises(InvalidArgumentError, match="'layer 0': make\\(\\) must return a new"):
            wrapped(head)
        return
    part = layer(name="part")
    if case == "modes":
        for options, why in (
            ({"ps": ps.Sync()}, "'part': its pushes take effect at once"),
            ({"max_grad_norm": 1.0}, "leave out max_grad_norm"),
        ):
            with pytest.raises(InvalidArgumentError, match=why):
                wrapped(head, **options)
        return
    optimizer = wrapped(head)
    with pytest.raises(InvalidArgumentError, match="was made after DistributedOptimizer"):
        layer()
    for what, why in (
        (lambda: copy.deepcopy(part), "cannot be copied or pickled"),
        (part.double, "it stays float32 on cpu"),
        (lambda: part.load_state_dict(nn.Linear(2, 2).state_dict()), "load them in make"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            what()
    part.to("cpu")
    x = torch.randn(3, 2)
    old = part(part(x)).sum()
    head(part(x)).sum().backward()
    with pytest.raises(InvalidArgumentError, match="a second backward\\(\\) before step"):
        head(part(x)).sum().backward()
    with pytest.raises(InvalidArgumentError, match="zero_grad\\(\\) between backward"):
        optimizer.zero_grad()
    optimizer.step()
    with pytest.raises(InvalidArgumentError, match="have changed since the forward pass"):
        old.backward()
    optimizer.zero_grad()
    head(part(x)).sum().backward()
    optimizer.step()

    model = nn.Sequential(part, head)
    for to_none in (True, False):
        model(x).sum().backward()
        model.zero_grad(set_to_none=to_none)
        with pytest.raises(InvalidArgumentError, match="'part': its gradients were zeroed"):
            optimizer.step()
        layer_module.end_step()
    model(x).sum().backward()
    with pytest.raises(InvalidArgumentError, match="'part': its gradients were zeroed, clipped"):
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
    layer_module.end_step()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(model(x).sum()).backward()
    with pytest.raises(InvalidArgumentError, match="before GradScaler can unscale them"):
        scaler.step(optimizer)


@pytest.mark.parametrize("case", ["making", "modes", "using"])
def test_wrong_use_is_a_sentence(case: str) -> None:
    for rank in run_ranks(refuses, 1, args=(case,), servers=1):
        assert rank.exit_code == 0, rank.stderr
