"""A shared step while ranks have joined: breaks when it is not that of those who are there, or when
who had joined does not go on with it."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from sharing import any_size
from torch import nn

import ciranda.torch as hvd

Make = Callable[[Any], torch.optim.Optimizer]


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(9, 300), nn.Tanh(), nn.Linear(300, 70), nn.Linear(70, 2))
    return model.double()


def loss_of(model: nn.Module, epoch: int, step: int, rank: int) -> torch.Tensor:
    seed = 10_000 * epoch + 100 * step + rank
    batch = torch.randn(4, 9, generator=torch.Generator().manual_seed(seed)).double()
    return model(batch).square().mean()


class Pair:
    """A model under a shared step, and its copy under the plain optimizer in one process, which
    averages over all ranks with zeros for those who have joined."""

    def __init__(self, make: Make, max_norm: float | None = None, **options: Any) -> None:
        self.model = make_model()
        self.alone = copy.deepcopy(self.model)
        with any_size():
            self.optimizer = hvd.DistributedOptimizer(
                make(self.model.parameters()),
                self.model.named_parameters(),
                max_grad_norm=max_norm,
                **options,
            )
        assert self.optimizer.why_not_shared() == ""
        self.alone_optimizer = make(self.alone.parameters())
        self.max_norm = max_norm

    def step(self, epoch: int, step: int) -> None:
        self.optimizer.zero_grad()
        loss_of(self.model, epoch, step, hvd.rank()).backward()
        self.optimizer.step()

    def step_alone(self, epoch: int, step: int, there: list[int]) -> None:
        self.alone_optimizer.zero_grad()
        for rank in there:
            (loss_of(self.alone, epoch, step, rank) / hvd.size()).backward()
        if self.max_norm is not None:
            nn.utils.clip_grad_norm_(self.alone.parameters(), self.max_norm)
        self.alone_optimizer.step()

    def epoch(self, number: int, batches: tuple[int, ...]) -> None:
        """With so many batches for each rank."""
        for step in range(batches[hvd.rank()]):
            self.step(number, step)
        hvd.join()
        for step in range(max(batches)):
            self.step_alone(number, step, [r for r in range(hvd.size()) if step < batches[r]])

    def check(self) -> None:
        for ours, theirs in zip(self.model.parameters(), self.alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
            require_same_bits(ours.detach())
        ours, theirs = self.optimizer.state_dict(), self.alone_optimizer.state_dict()
        assert ours["state"].keys() == theirs["state"].keys()
        for number, entry in theirs["state"].items():
            for name, value in entry.items():
                if value is not None:
                    torch.testing.assert_close(
                        ours["state"][number][name], value, rtol=1e-6, atol=1e-9
                    )
                    require_same_bits(torch.as_tensor(ours["state"][number][name]))


def require_same_bits(tensor: torch.Tensor) -> None:
    everybodys = hvd.allgather(tensor.flatten()[None])
    assert torch.equal(everybodys, everybodys[:1].expand_as(everybodys))


# By epoch and rank; in the first epoch of the second list rank 0, which keeps the state, has none.
BATCHES = {
    2: [[(3, 5), (4, 2), (2, 2)], [(0, 3), (2, 1), (0, 2)]],
    4: [[(3, 5, 0, 1), (2, 0, 4, 4), (1, 1, 1, 1)], [(0, 0, 2, 4), (3, 1, 1, 0), (1, 1, 0, 1)]],
}


@on_ranks(2, 4)
def test_equals_one_process_that_averages_with_zeros() -> None:
    for make, shared_step, max_norm in itertools.product(
        (momentum, adam), ("auto", "host"), (None, 0.3)
    ):
        for epochs in BATCHES[hvd.size()]:
            pair = Pair(make, max_norm, shared_step=shared_step)
            for number, batches in enumerate(epochs):
                pair.epoch(number, batches)
                pair.check()
            assert pair.optimizer.why_not_shared() == ""


@on_ranks(2)
def test_one_copy_of_the_parameters() -> None:
    pair = Pair(adam, share_parameters=True)
    for number, batches in enumerate(BATCHES[2][1]):
        pair.epoch(number, batches)
        pair.check()


@on_ranks(2)
def test_state_that_was_loaded_before_the_first_step() -> None:
    first = Pair(adam, shared_step="host")
    first.epoch(0, (3, 3))
    saved = copy.deepcopy(first.optimizer.state_dict())
    pair = Pair(adam, shared_step="host")
    pair.optimizer.load_state_dict(saved)
    pair.alone_optimizer.load_state_dict(first.alone_optimizer.state_dict())
    pair.epoch(1, (0, 3))
    pair.check()
    pair.epoch(2, (2, 1))
    pair.check()


@on_ranks(2)
def test_state_that_is_loaded_after_a_join() -> None:
    pair = Pair(adam, shared_step="host")
    pair.epoch(0, (1, 3))
    saved = copy.deepcopy(pair.optimizer.state_dict())
    alone = copy.deepcopy(pair.alone_optimizer.state_dict())
    pair.epoch(1, (3, 1))
    pair.optimizer.load_state_dict(saved)
    pair.alone_optimizer.load_state_dict(alone)
    pair.check()
    pair.epoch(2, (0, 2))
    pair.check()


@on_ranks(2)
def test_a_rule_that_needs_other_state_than_when_the_optimizer_was_made() -> None:
    def plain(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05)

    pair = Pair(plain, shared_step="host")
    pair.optimizer.param_groups[0]["momentum"] = 0.9  # as OneCycleLR does
    pair.alone_optimizer.param_groups[0]["momentum"] = 0.9
    pair.epoch(0, (2, 3))
    pair.check()
    pair.epoch(1, (0, 2))
    pair.check()
    assert pair.optimizer.why_not_shared() == ""


@on_ranks(2)
def test_autograd_sees_what_others_have_written() -> None:
    pair = Pair(momentum, shared_step="host")
    pair.step(0, 0)
    versions = [p._version for p in pair.model.parameters()]
    if hvd.rank() == 0:
        pair.step(0, 1)
    hvd.join()
    pair.step(1, 0)
    assert all(
        p._version > before for p, before in zip(pair.model.parameters(), versions, strict=True)
    )


def object_to(pair: Pair, number: int, batches: tuple[int, ...]) -> None:
    """An epoch in whose last step rank 1 has joined and rank 0 looks at its state."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(batches[hvd.rank()]):
            if hvd.rank() == 0 and step == batches[0] - 1:
                assert len(pair.optimizer.state) == 6
            pair.step(number, step)
    last = hvd.join()
    hvd.broadcast_parameters(pair.model.state_dict(), root_rank=last)
    for step in range(max(batches)):
        pair.step_alone(number, step, [r for r in range(2) if step < batches[r]])


@on_ranks(2)
def test_who_had_joined_hears_that_the_ranks_do_not_share_any_more() -> None:
    for make, shared_step in itertools.product((momentum, adam), ("auto", "host")):
        pair = Pair(make, 0.3, shared_step=shared_step)
        pair.epoch(0, (2, 1))
        object_to(pair, 1, (3, 1))
        assert ("optimizer.state was used" in pair.optimizer.why_not_shared()) == (hvd.rank() == 0)
        pair.optimizer.zero_grad()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pair.step(2, 0)
        pair.step_alone(2, 0, [0, 1])
        assert pair.optimizer.why_not_shared() == "on rank 0 optimizer.state was used"
        assert bool(caught) == (hvd.rank() == 1)
        # What rank 1 has missed is rank 0's: as without a shared step it broadcasts.
        hvd.broadcast_parameters(pair.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(pair.optimizer, root_rank=0)
        for step in range(1, 4):
            pair.step(2, step)
            pair.step_alone(2, step, [0, 1])
        pair.check()


@on_ranks(2)
def test_who_had_joined_hears_of_it_whatever_comes_first() -> None:
    def synchronize(pair: Pair) -> None:
        loss_of(pair.model, 2, 0, 0).backward()
        pair.optimizer.synchronize()
        with pair.optimizer.skip_synchronize():
            pair.optimizer.step()

    def skip(pair: Pair) -> None:
        loss_of(pair.model, 2, 0, 0).backward()
        with pair.optimizer.skip_synchronize():
            pair.optimizer.step()

    def add_a_group(pair: Pair) -> None:
        pair.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3).double())]})
        pair.step(2, 0)

    def closure(pair: Pair) -> None:
        def compute() -> torch.Tensor:
            pair.optimizer.zero_grad()
            loss = loss_of(pair.model, 2, 0, 0)
            loss.backward()
            return loss

        pair.optimizer.step(compute)

    def edit_the_groups(pair: Pair) -> None:
        pair.optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(3).double()))
        pair.step(2, 0)

    for act in (synchronize, skip, add_a_group, closure, edit_the_groups):
        pair = Pair(momentum, shared_step="host")
        object_to(pair, 1, (3, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pair.optimizer.zero_grad()
            act(pair)
            assert "optimizer.state was used" in pair.optimizer.why_not_shared()
            pair.step(2, 1)


@on_ranks(2)
def test_a_parameter_that_is_unfrozen_while_a_rank_has_joined() -> None:
    pair = Pair(momentum, shared_step="host")
    frozen = nn.Parameter(torch.ones(2).double(), requires_grad=False)
    pair.optimizer.add_param_group({"params": [frozen]})
    pair.step(0, 0)
    frozen.requires_grad_()
    if hvd.rank() == 0:
        with pytest.raises(RuntimeError, match="rank 1 has joined"):
            pair.step(0, 1)
    hvd.join()
    pair.optimizer.zero_grad()
    (loss_of(pair.model, 1, 0, 0) + frozen.sum()).backward()
    pair.optimizer.step()
    torch.testing.assert_close(frozen.detach(), torch.full((2,), 0.95).double())
    assert pair.optimizer.why_not_shared() == ""
