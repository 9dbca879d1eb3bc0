"""Tables of rows on servers: breaks when they train otherwise than torch's own, when a worker holds
more than what it looks up, or when a wrong id or table is taken."""

from __future__ import annotations

import resource

import pytest
import torch
from ranks import run_ranks
from torch.nn import functional as F

import ciranda.torch as cr
from ciranda.errors import InvalidArgumentError
from ciranda.torch import ps

ROWS, COLUMNS, CLASSES = 1_000, 8, 5
STEPS = 30


class Model(torch.nn.Module):
    def __init__(self, table: torch.nn.Module) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.table = table
        self.head = torch.nn.Linear(COLUMNS, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids).mean(1))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(ROWS, (16, 7), generator=generator)
    ids[:, 3] = ids[:, 2]  # some occur twice
    return ids, torch.randint(CLASSES, (16,), generator=generator)


def losses_of(model: Model, *optimizers: torch.optim.Optimizer) -> list[float]:
    losses = []
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for part in range(2):  # accumulated
            ids, labels = batch(2 * step + part)
            loss = F.cross_entropy(model(ids), labels)
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


def trains_as_torch(kind: str) -> None:
    cr.init()
    options = {"optimizer": kind, "lr": 0.5}
    if kind == "adagrad":
        options |= {"initial_accumulator_value": 0.1}
    table = ps.Embedding(ROWS, COLUMNS, **options)  # type: ignore[arg-type]
    model = Model(table)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = cr.DistributedOptimizer(
        optimizer, model.named_parameters(), backend="ps", mode=ps.Async()
    )
    with torch.no_grad():
        begin = table(torch.arange(ROWS))

    plain = Model(torch.nn.Embedding(ROWS, COLUMNS, sparse=True, _weight=begin.clone()))
    makers = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
    rest = {key: value for key, value in options.items() if key != "optimizer"}
    theirs = makers[kind](plain.table.parameters(), **rest)
    head = torch.optim.SGD(plain.head.parameters(), lr=0.1)
    plain.head.load_state_dict(model.head.state_dict())

    expected = losses_of(plain, theirs, head)
    assert losses_of(model, optimizer) == pytest.approx(expected, abs=1e-5)
    with torch.no_grad():
        end = table(torch.arange(ROWS))
    assert (end - plain.table.weight).abs().max() < 1e-5
    assert (end - begin).abs().max() > 0.01


@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_it_trains_as_torchs_own_with_sparse_gradients(kind: str) -> None:
    for rank in run_ranks(trains_as_torch, 1, args=(kind,), servers=2):
        assert rank.exit_code == 0, rank.stderr


def grows_by_mb() -> float:
    """A table of 4 GB, of which 128,000 rows are looked up."""
    cr.init()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table = ps.Embedding(1 << 24, 64, optimizer="adagrad", lr=0.1)
    head = torch.nn.Linear(64, 1)
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD(head.parameters(), lr=0.1),
        head.named_parameters(),
        backend="ps",
        mode=ps.Async(),
    )
    generator = torch.Generator().manual_seed(cr.rank())
    for _ in range(32):
        optimizer.zero_grad()
        head(table(torch.randint(1 << 24, (4_000,), generator=generator))).sum().backward()
        optimizer.step()
    assert ps.stats()["servers"][0]["held_bytes"] > 10_000_000
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3


def test_a_table_of_4_gb_takes_no_worker_more_than_200_mb() -> None:
    for rank in run_ranks(grows_by_mb, 2, servers=2):
        assert rank.exit_code == 0, rank.stderr
        assert rank.value < 200


def refuses() -> None:
    cr.init()
    with pytest.raises(InvalidArgumentError, match="optimizer must be 'sgd' or 'adagrad'"):
        ps.Embedding(10, 2, lr=0.1, optimizer="adam")  # type: ignore[arg-type]
    table = ps.Embedding(10, 2, lr=0.1)
    head = torch.nn.Linear(2, 1)
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD(head.parameters(), lr=0.1),
        head.named_parameters(),
        backend="ps",
        mode=ps.Async(),
    )
    for ids, why in (
        (torch.tensor([3, 10]), "ids must be 0 to 9, not 3 to 10"),
        (torch.tensor([-1]), "not -1 to -1"),
        (torch.tensor([1.0]), "ids must be integers, not torch.float32"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            table(ids)
    assert table(torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3, 2)
    with pytest.raises(InvalidArgumentError, match="comes after DistributedOptimizer"):
        ps.Embedding(10, 2, lr=0.1, name="late")
    before = table(torch.tensor([4])).detach()
    table(torch.tensor([4])).sum().backward()
    optimizer.zero_grad()  # forgets that
    head(table(torch.tensor([5]))).sum().backward()
    optimizer.step()
    assert torch.equal(table(torch.tensor([4])).detach(), before)


def test_wrong_use_is_a_sentence() -> None:
    for rank in run_ranks(refuses, 1, servers=1):
        assert rank.exit_code == 0, rank.stderr
