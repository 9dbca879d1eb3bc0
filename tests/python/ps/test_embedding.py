"""Tables of rows on servers: breaks when they train otherwise than torch's own, when a worker holds
more than what it looks up, or when a wrong id or table is taken."""

from __future__ import annotations

import copy
import resource
from typing import Any

import pytest
import torch
from ranks import run_ranks, values_of
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
    optimizer = cr.DistributedOptimizer(optimizer, model.named_parameters(), ps=ps.Async())
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


# --- What a script may do with it ---------------------------------------------------------------


def two_losses_of_one_lookup(model: Model, optimizer: Any) -> None:
    optimizer.zero_grad()
    rows = model.table(batch(0)[0])
    one, other = (rows * 2).sum(), rows.square().sum()
    one.backward(retain_graph=True)
    other.backward()
    optimizer.step()


def one_loss_twice(model: Model, optimizer: Any) -> None:
    optimizer.zero_grad()
    loss = loss_of(model, 1)
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()


def discards_a_batch(model: Model, optimizer: Any) -> None:
    for to_none in (True, False):
        loss_of(model, 2).backward()
        model.zero_grad(set_to_none=to_none)
        model.head(torch.ones(1, COLUMNS)).sum().backward()
        optimizer.step()


def steps_without_zeroing(model: Model, optimizer: Any) -> None:
    optimizer.zero_grad()
    for number in range(3):
        loss_of(model, number).backward()
        optimizer.step()


def scales(model: Model, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for unscales in (False, True):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, 3)).backward()
        if unscales:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()


def overflows(model: Model, optimizer: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    scaler.scale(model.table(batch(4)[0]).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    optimizer.zero_grad()
    loss_of(model, 4).backward()
    optimizer.step()


def clips(model: Model, optimizer: Any) -> None:
    optimizer.zero_grad()
    loss_of(model, 5).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    loss_of(model, 6).backward()
    optimizer.step()


def changes_gradients(model: Model, optimizer: Any) -> None:
    optimizer.zero_grad()
    loss_of(model, 7).backward()
    model.table.weight.grad.mul_(0.5)
    loss_of(model, 7).backward()
    optimizer.step()


def gives_gradients_itself(model: Model, optimizer: Any) -> None:
    optimizer.zero_grad()
    weight = model.table.weight
    dense = torch.zeros(ROWS, COLUMNS)
    dense[3:6] = 1.0
    twice = torch.sparse_coo_tensor([[7, 2, 7]], torch.ones(3, COLUMNS), (ROWS, COLUMNS))
    for gradient in (dense, dense.to_sparse(), dense.to_sparse(1), twice):
        weight.grad = gradient
        optimizer.step()


def freezes(model: Model, optimizer: Any) -> None:
    optimizer.zero_grad()
    model.table.requires_grad_(False)
    loss_of(model, 8).backward()
    optimizer.step()
    model.requires_grad_(True)
    loss_of(model, 8).backward()
    optimizer.step()


def closes(model: Model, optimizer: Any) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 9)
        loss.backward()
        return loss

    optimizer.step(closure)


WAYS = [
    two_losses_of_one_lookup,
    one_loss_twice,
    discards_a_batch,
    steps_without_zeroing,
    scales,
    overflows,
    clips,
    changes_gradients,
    gives_gradients_itself,
    freezes,
    closes,
]

# A step of ours leaves gradients as they were before it clipped; torch's hook precedes a closure.
UNLIKE_A_HOOK_THAT_CLIPS = [steps_without_zeroing, freezes, closes]


def loss_of(model: Model, number: int) -> torch.Tensor:
    ids, labels = batch(number)
    return F.cross_entropy(model(ids), labels)


def off_by_way(update_on: str, max_grad_norm: float | None) -> dict[str, float]:
    """By which the rows and the head are off after each."""
    cr.init()
    model = Model(ps.Embedding(ROWS, COLUMNS, lr=0.5))
    others = ps.Embedding(4, 2, lr=1.0)  # without a name either
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD([*model.parameters(), *others.parameters()], lr=0.1),
        [*model.named_parameters(), ("others", others.weight)],
        ps=ps.Async(update_on=update_on),
        max_grad_norm=max_grad_norm,
    )
    with torch.no_grad():
        begin = model.table(torch.arange(ROWS))
    plain = Model(torch.nn.Embedding(ROWS, COLUMNS, sparse=True, _weight=begin.clone()))
    plain.head.load_state_dict(model.head.state_dict())
    theirs = torch.optim.SGD(
        [{"params": plain.head.parameters()}, {"params": plain.table.parameters(), "lr": 0.5}],
        lr=0.1,
    )
    if max_grad_norm is not None:

        def clip(*_: Any) -> None:
            torch.nn.utils.clip_grad_norm_(plain.parameters(), max_grad_norm)

        theirs.register_step_pre_hook(clip)
    off = {}
    for way in WAYS:
        if max_grad_norm is not None and way in UNLIKE_A_HOOK_THAT_CLIPS:
            continue
        way(model, optimizer)
        way(plain, theirs)
        with torch.no_grad():
            rows = model.table(torch.arange(ROWS)) - plain.table.weight
        off[way.__name__] = max(
            rows.abs().max().item(), (model.head.weight - plain.head.weight).abs().max().item()
        )
    return off


@pytest.mark.parametrize(
    ("update_on", "max_grad_norm"), [("server", None), ("worker", None), ("server", 0.05)]
)
def test_a_script_does_what_it_does_with_torchs_own(
    update_on: str, max_grad_norm: float | None
) -> None:
    (off,) = values_of(run_ranks(off_by_way, 1, args=(update_on, max_grad_norm), servers=2))
    assert {way: by for way, by in off.items() if not by < 1e-5} == {}


def factorizes() -> float:
    """A model of tables alone."""
    cr.init()
    users, items = ps.Embedding(50, 4, lr=0.1), ps.Embedding(60, 4, lr=0.1, optimizer="adagrad")
    model = torch.nn.ModuleList([users, items])
    optimizer = cr.DistributedOptimizer(
        torch.optim.Adagrad(model.parameters()),
        model.named_parameters(),
        ps=ps.Async(),
    )
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        product = (users(torch.arange(50)) * items(torch.arange(50))).sum(1)
        loss = (product - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert not optimizer.state_dict()["state"]
    assert not model.state_dict()
    return losses[-1] / losses[0]


def test_a_model_may_be_of_tables_alone() -> None:
    assert values_of(run_ranks(factorizes, 1, servers=2))[0] < 0.1


def grows_by_mb() -> float:
    """A table of 4 GB, of which 128,000 rows are looked up."""
    cr.init()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table = ps.Embedding(1 << 24, 64, optimizer="adagrad", lr=0.1)
    head = torch.nn.Linear(64, 1)
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD(head.parameters(), lr=0.1),
        head.named_parameters(),
        ps=ps.Async(),
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
    with pytest.raises(InvalidArgumentError, match=r"'weight' stands for a ps\.Embedding"):
        ps.Sandblaster(table.named_parameters())
    head = torch.nn.Linear(2, 1)
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD(head.parameters(), lr=0.1),
        head.named_parameters(),
        ps=ps.Async(),
    )
    for ids, why in (
        (torch.tensor([3, 10]), "ids must be 0 to 9, not 3 to 10"),
        (torch.tensor([-1]), "not -1 to -1"),
        (torch.tensor([1.0]), "ids must be integers, not torch.float32"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            table(ids)
    assert table(torch.empty(0, 3, dtype=torch.int64)).shape == (0, 3, 2)
    with pytest.raises(InvalidArgumentError, match="was made after DistributedOptimizer"):
        ps.Embedding(10, 2, lr=0.1, name="late")
    with pytest.raises(InvalidArgumentError, match="cannot be copied or pickled"):
        copy.deepcopy(table)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(head(table(torch.tensor([5]))).sum()).backward()
    with pytest.raises(InvalidArgumentError, match="'embedding': GradScaler unscales the grad"):
        scaler.step(optimizer)
    optimizer.zero_grad()
    before = table(torch.tensor([4])).detach()
    table(torch.tensor([4])).sum().backward()
    optimizer.zero_grad()  # forgets that
    head(table(torch.tensor([5]))).sum().backward()
    optimizer.step()
    assert torch.equal(table(torch.tensor([4])).detach(), before)


def test_wrong_use_is_a_sentence() -> None:
    for rank in run_ranks(refuses, 1, servers=1):
        assert rank.exit_code == 0, rank.stderr
