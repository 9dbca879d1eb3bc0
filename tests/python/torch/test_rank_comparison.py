"""Ranks that do not train the same model in the same way: breaks when nobody hears of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from sharing import any_size
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

import ciranda.torch as hvd
from ciranda.errors import MismatchError

Edit = Callable[[nn.Module], object]
WAYS: list[dict[str, Any]] = [{"shared_step": False}, {"shared_step": "host"}, {"op": hvd.Adasum}]


class Words(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(16, 3, **options)
        self.last = nn.Linear(3, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.last(self.table(words))
        return scores


def words_of_rank() -> torch.Tensor:
    return torch.tensor([2, 3, 4]) + 4 * hvd.rank()


def make(
    model: nn.Module,
    optimizer: Callable[..., torch.optim.Optimizer] = SGD,
    lr: float = 0.1,
    **options: Any,
) -> Any:
    with any_size():
        return hvd.DistributedOptimizer(
            optimizer(model.parameters(), lr=lr), model.named_parameters(), **options
        )


def step(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(words_of_rank()).square().mean().backward()
    optimizer.step()


def warned(model: nn.Module, optimizer: Any, edit: Edit | None = None, steps: int = 9) -> list[str]:
    """What so many steps warn of; `edit` comes before each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            if edit is not None:
                edit(model)
            step(model, optimizer)
    return [str(warning.message) for warning in caught]


@on_ranks(2, 3)
def test_ranks_that_step_differently_are_told_before_the_first_step() -> None:
    last = hvd.rank() == hvd.size() - 1
    cases: list[tuple[Any, Any, str]] = [
        (SGD, Adam, r"rank 0 with SGD lr=0.1 .*, rank \d with Adam lr=0.1 betas=\(0.9, 0.999\)"),
        (SGD, lambda p, lr: SGD(p, lr=0.2), r"rank 0 with SGD lr=0.1 .* with SGD lr=0.2 "),
        (Adam, lambda p, lr: Adam(p, lr, betas=(0.8, 0.9)), r"betas=\(0.9, .*betas=\(0.8, 0.9\)"),
    ]
    for options in WAYS:
        for ours, theirs, text in cases:
            if options.get("shared_step") == "host":
                continue  # a shared step compares each time, in words of its own
            model = Words()
            before = model.last.weight.detach().clone()
            optimizer = make(model, theirs if last else ours, **options)
            with pytest.raises(MismatchError, match=text):
                step(model, optimizer)
            assert torch.equal(model.last.weight, before)


@on_ranks(2)
def test_what_is_broadcast_before_the_first_step_may_have_differed() -> None:
    for options in WAYS:
        model = Words()
        with torch.no_grad():
            model.last.weight.add_(hvd.rank())
        optimizer = make(model, lr=0.1 + hvd.rank(), **options)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert warned(model, optimizer) == []


@on_ranks(2)
def test_a_forgotten_broadcast_is_named() -> None:
    for options in WAYS:
        model = Words()
        with torch.no_grad():
            model.last.weight[0, 1] += 1e-6 * hvd.rank()
        before = model.last.weight.detach().clone()
        optimizer = make(model, **options)
        for _ in range(2):
            with pytest.raises(
                MismatchError,
                match=r"ranks 0 and 1 have different values of parameter 'last.weight'; call "
                "broadcast_parameters",
            ):
                step(model, optimizer)
        assert torch.equal(model.last.weight, before)
        hvd.broadcast_parameters(model.state_dict(), root_rank=1)
        assert warned(model, optimizer) == []


@on_ranks(2)
def test_parameters_that_are_added_are_compared() -> None:
    model, added = Words(), nn.Parameter(torch.tensor([float(hvd.rank())]))
    optimizer = make(model, shared_step=False)
    step(model, optimizer)
    optimizer.add_param_group({"params": [added]})
    with pytest.raises(MismatchError, match=r"different values of parameter 'group.1.param.0'"):
        step(model, optimizer)
    hvd.broadcast_parameters([("added", added)], root_rank=0)
    step(model, optimizer)


@on_ranks(2)
def test_what_forward_writes_on_each_rank_is_named_once() -> None:
    class OneRanks(Words):
        passes = 0

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            self.passes += 1
            if hvd.rank() == 1 and self.passes > 1:
                F.embedding(words, self.table.weight, max_norm=0.1)
            return super().forward(words)

    for options in WAYS:
        for model in (Words(max_norm=0.1), OneRanks()):
            optimizer = make(model, **options)
            texts = warned(model, optimizer)
            assert len(texts) == 1
            assert "ranks 0 and 1 have different values of parameter 'table.weight'" in texts[0]
            assert "nn.Embedding(max_norm=...)" in texts[0]


@on_ranks(2)
def test_what_all_ranks_write_alike_is_no_fault() -> None:
    kept = Words().state_dict()

    def clamp(model: nn.Module) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.clamp_(-0.1, 0.1)

    def broadcast(model: nn.Module) -> None:
        if hvd.rank() == 0:
            clamp(model)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def renorm(model: nn.Module) -> None:
        with torch.no_grad():
            model.table.weight.renorm_(2, 0, 0.1)  # type: ignore[union-attr, operator]

    edits: list[Edit] = [clamp, broadcast, renorm, lambda model: model.load_state_dict(kept)]
    for options in WAYS:
        for edit in edits:
            model = Words()
            assert warned(model, make(model, **options), edit) == []


@on_ranks(2)
def test_ranks_that_step_differently_later_are_told_once() -> None:
    model = Words()
    optimizer = make(model, shared_step=False)
    step(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.1 / (1 + hvd.rank())
    (text,) = warned(model, optimizer)
    assert "rank 0 with SGD lr=0.1 " in text and "rank 1 with SGD lr=0.05 " in text


@on_ranks(2)
def test_a_rank_that_has_missed_steps_by_a_join_is_told() -> None:
    def epoch(model: nn.Module, optimizer: Any) -> int:
        for _ in range(1 if hvd.rank() == 0 else 6):
            step(model, optimizer)
        return hvd.join()

    for broadcasts in (True, False):
        model = Words()
        optimizer = make(model, shared_step=False)
        for _ in range(3):
            last = epoch(model, optimizer)
            hvd.broadcast_parameters(model.state_dict(), last)
        last = epoch(model, optimizer)
        if broadcasts:
            hvd.broadcast_parameters(model.state_dict(), last)
        texts = warned(model, optimizer)
        assert len(texts) == (0 if broadcasts else 1)
        assert broadcasts or "after join(); call broadcast_parameters()" in texts[0]
