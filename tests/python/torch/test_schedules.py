"""Linear scaling and warm-up: the formula, with torch's schedulers and every kind of step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from ranks import run_ranks, values_of
from torch import nn
from torch.optim import lr_scheduler

import ciranda.torch as hvd
from ciranda.torch import schedules


def rates(optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> list[float]:
    """With which each step is made."""
    found = []
    for _ in range(steps):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


def sgd(lr: float = 0.8) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=lr)


def test_the_rate_is_that_of_all_ranks() -> None:
    assert schedules.scaled_lr(0.1, 8) == pytest.approx(0.8)
    with pytest.raises(ValueError, match="scaled_lr: size must be at least 1, not 0"):
        schedules.scaled_lr(0.1, 0)


def test_the_rate_rises_in_equal_increments_and_stays() -> None:
    optimizer = sgd()
    scheduler = schedules.warmup(optimizer, 4, start=1 / 8)
    wanted = [0.1, 0.275, 0.45, 0.625, 0.8, 0.8, 0.8]
    assert rates(optimizer, scheduler, 7) == pytest.approx(wanted)


def test_another_scheduler_takes_over_and_a_checkpoint_holds_both() -> None:
    def made() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = sgd()
        decay = lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        return optimizer, schedules.warmup(optimizer, 2, after=decay, start=0.5)

    wanted = [0.4, 0.6, 0.8, 0.8, 0.4, 0.4, 0.2]
    assert rates(*made(), 7) == pytest.approx(wanted)
    for done in range(6):
        first, scheduler = made()
        rates(first, scheduler, done)
        second, resumed = made()
        second.load_state_dict(first.state_dict())
        resumed.load_state_dict(scheduler.state_dict())
        assert rates(second, resumed, 7 - done) == pytest.approx(wanted[done:])


def test_a_scheduler_of_epochs_is_stepped_beside_it() -> None:
    optimizer = sgd()
    warm, decay = (
        schedules.warmup(optimizer, 2, start=0.5),
        lr_scheduler.ExponentialLR(optimizer, 0.1),
    )
    assert rates(optimizer, warm, 3) == pytest.approx([0.4, 0.6, 0.8])
    decay.step()
    assert rates(optimizer, warm, 2) == pytest.approx([0.08, 0.08])


def test_groups_keep_their_ratio_and_a_tensor_stays_one() -> None:
    weights = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = torch.optim.SGD(
        [{"params": weights[:1]}, {"params": weights[1:], "lr": torch.tensor(0.08)}], lr=0.8
    )
    scheduler = schedules.warmup(optimizer, 2, start=0.5)
    for wanted in (0.4, 0.6, 0.8, 0.8):
        one, other = (group["lr"] for group in optimizer.param_groups)
        assert isinstance(other, torch.Tensor)
        assert (one, float(other)) == pytest.approx((wanted, wanted / 10))
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"steps": 0}, "warmup: steps must be a whole number of at least 1, not 0"),
        ({"steps": 1.5}, "warmup: steps must be a whole number of at least 1, not 1.5"),
        ({"steps": 2, "start": 0.0}, "warmup: start must be above 0 and at most 1, not 0.0"),
        ({"steps": 2, "start": 2}, "warmup: start must be above 0 and at most 1, not 2"),
    ],
)
def test_what_is_wrong_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        schedules.warmup(sgd(), **options)


def test_before_init_the_ranks_are_not_known() -> None:
    with pytest.raises(ValueError, match="init"):
        schedules.scaled_lr(0.1)


def test_helpers_are_imported_where_they_are_first_used() -> None:
    script = """
import sys
import ciranda.torch as hvd
for name in hvd._HELPERS:
    assert f"ciranda.torch.{name}" not in sys.modules
for name in hvd._HELPERS:  # one may need another
    assert getattr(hvd, name) is sys.modules[f"ciranda.torch.{name}"]
import ciranda.torch.schedules
"""
    values_of(run_ranks(script, 1))


@on_ranks(2)
def test_every_kind_of_step_takes_the_rising_rate() -> None:
    """Shared or not, each step is lr * gradient with the rate of that step, on all ranks."""
    assert schedules.scaled_lr(0.25) == 0.5
    steps: list[Any] = ["host", "auto", False]
    for shared_step in steps:
        model = nn.Linear(300, 300, bias=False)  # large enough for "auto" to share
        nn.init.zeros_(model.weight)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=schedules.scaled_lr(0.25))
        optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), shared_step=shared_step
        )
        decay = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        scheduler = schedules.warmup(optimizer, 2, after=decay)
        before, wanted = 0.0, [0.25, 0.375, 0.5, 0.25]
        for rate in wanted:
            optimizer.zero_grad()
            model.weight.sum().backward()  # a gradient of ones
            optimizer.step()
            scheduler.step()
            before -= rate
            assert model.weight.detach().unique().tolist() == [before]
        assert bool(optimizer.why_not_shared()) == (shared_step is False)
