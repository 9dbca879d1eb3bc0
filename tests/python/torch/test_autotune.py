"""CIRANDA_AUTOTUNE: settings are tried between steps, the training stays the same, and what is kept
was faster than what there was."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks, values_of
from torch import nn

import ciranda.torch as hvd
from ciranda import _C
from ciranda.torch import optimizer as made_by
from ciranda.torch import rank_optimizer

TUNED = {
    "CIRANDA_AUTOTUNE": "1",
    "CIRANDA_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    "CIRANDA_AUTOTUNE_WARMUP_SAMPLES": "0",
}
STEPS = 140  # enough for all samples


def batch(step: int) -> torch.Tensor:
    """A rank's."""
    generator = torch.Generator().manual_seed(1000 * hvd.rank() + step)
    return torch.randn(4, 300, generator=generator)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def trained(steps: Callable[[], Iterator[int]], **options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    # 1.6 MB of gradients, in one bucket or in several.
    model = nn.Sequential(nn.Linear(300, 1000), nn.Tanh(), nn.Linear(1000, 100))
    optimizer = hvd.DistributedOptimizer(
        sgd(model.parameters()), model.named_parameters(), **options
    )
    for step in steps():
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def clock(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[], float]) -> None:
    """Time is what `seconds` says of the settings at each look at it."""
    now = itertools.accumulate(seconds() for _ in itertools.count())
    monkeypatch.setattr(rank_optimizer.time, "perf_counter", lambda: next(now))


def keep_made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The optimizers that are made from now on, each before it is tuned."""
    made: list[Any] = []
    train_together = made_by.train_together

    def kept(optimizer: Any, *arguments: Any, **options: Any) -> None:
        made.append(optimizer)
        train_together(optimizer, *arguments, **options)

    monkeypatch.setattr(made_by, "train_together", kept)
    return made


def all_through() -> str:
    """The same steps, tuned and by hand; then what is left of it."""
    hvd.init()
    model, optimizer = trained(lambda: iter(range(STEPS)), backward_passes_per_step=1)
    assert not optimizer._ciranda_core.tunes()  # it has come to an end
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(300, 1000), nn.Tanh(), nn.Linear(1000, 100))
    inner = sgd(plain.parameters())
    for step in range(STEPS):
        inner.zero_grad()
        plain(batch(step)).square().mean().backward()
        for parameter in plain.parameters():
            hvd.allreduce_(parameter.grad)
        inner.step()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
    assert optimizer.state_dict()["state"].keys() == inner.state_dict()["state"].keys()
    return str(hvd.size())


@pytest.mark.parametrize("ranks", [2, 3])
def test_training_stays_the_same(tmp_path: Path, ranks: int) -> None:
    log = tmp_path / "log"
    results = run_ranks(all_through, ranks, env=TUNED | {"CIRANDA_AUTOTUNE_LOG": str(log)})
    values_of(results)
    lines = log.read_text().splitlines()
    assert lines[0].startswith(f"SGD, 4 parameters, {ranks} ranks; at most ")
    tried = [line.split(" instead of ")[0] for line in lines if " instead of " in line]
    assert "shared_step=False" in tried and "bucket_bytes=1048576" in tried
    assert any(knob.startswith("CIRANDA_OVERLAP=") for knob in tried)
    assert "CIRANDA_SPIN_MICROSECONDS=1000" in tried
    assert results[0].stderr == f"ciranda: autotune: {lines[-1]}\n"
    assert all(result.stderr == "" for result in results[1:])


def faster_alone() -> list[Any]:
    with pytest.MonkeyPatch.context() as patched:
        hvd.init()
        clock(patched, lambda: 1.0 if _C.pace()[1] != 1000 else 0.5)
        _, optimizer = trained(lambda: iter(range(STEPS)))
        return [_C.pace()[1], optimizer.why_not_shared()]


def test_what_is_faster_is_kept() -> None:
    results = run_ranks(faster_alone, 2, env=TUNED)
    assert values_of(results) == [[1000, ""]] * 2
    assert results[0].stderr == (
        "ciranda: autotune: CIRANDA_SPIN_MICROSECONDS=1000: a step takes 500 ms (500-500) beside "
        "1000 ms (1000-1000) before\n"
    )


def slower_at_the_end() -> list[Any]:
    with pytest.MonkeyPatch.context() as patched:
        hvd.init()
        own = _C.pace()
        looks = itertools.count()
        clock(patched, lambda: 0.5 if _C.pace()[1] == 1000 and next(looks) < 7 else 1.0)
        trained(lambda: iter(range(STEPS)))
        return [own == _C.pace()]


def test_what_is_faster_no_more_is_not_kept() -> None:
    results = run_ranks(slower_at_the_end, 2, env=TUNED)
    assert values_of(results) == [[True]] * 2
    assert "no setting was faster than the first one" in results[0].stderr


def own_step() -> list[Any]:
    """The ranks' own steps are faster, by the clock."""
    with pytest.MonkeyPatch.context() as patched:
        hvd.init()
        made = keep_made(patched)
        clock(patched, lambda: 1.0 if made[0].why_not_shared() == "" else 0.5)
        _, optimizer = trained(lambda: iter(range(STEPS)))
        return [optimizer.why_not_shared(), sorted(optimizer.state_dict()["state"])]


def test_a_step_of_each_rank_may_be_found_faster() -> None:
    why = "autotuning found a step of each rank faster"
    assert values_of(run_ranks(own_step, 2, env=TUNED)) == [[why, [0, 1, 2, 3]]] * 2


def uneven(when: int) -> list[Any]:
    hvd.init()
    own = _C.pace()

    def steps() -> Iterator[int]:
        yield from range(when + 4 * (hvd.rank() == 0))
        hvd.join()
        yield from range(20)

    model, optimizer = trained(steps)
    weights = [parameter.sum().item() for parameter in model.parameters()]
    return [weights, not optimizer._ciranda_core.tunes(), own == _C.pace()]


@pytest.mark.parametrize("when", [0, 9, 10, 11])
def test_ranks_with_fewer_batches_end_it(when: int) -> None:
    results = run_ranks(uneven, 2, args=[when], env=TUNED)
    one, other = values_of(results)
    assert one == other
    assert one[1:] == [True, True]
    assert results[0].stderr.startswith(
        "ciranda: autotune: stopped, and the settings are as before: "
    )


def touched() -> list[Any]:
    """Rank 1's program takes hold of the state."""
    hvd.init()
    seen: list[Any] = []

    def steps() -> Iterator[int]:
        for step in range(STEPS):
            yield step
            if step == 30:
                if hvd.rank() == 1:
                    seen.append(made[0].state)
                made[0].set_backward_passes_per_step(1)
                made[0].add_param_group({"params": [nn.Parameter(torch.ones(3))]})

    with pytest.MonkeyPatch.context() as patched:
        clock(patched, lambda: 1.0)  # so that the step is shared when the state is used
        made = keep_made(patched)
        model, optimizer = trained(steps)
    assert not optimizer._ciranda_core.tunes()
    if seen:
        assert seen[0] is optimizer.state
        assert all(parameter in seen[0] for parameter in model.parameters())
    return [optimizer.why_not_shared(), [p.sum().item() for p in model.parameters()]]


def test_what_the_program_has_taken_hold_of_is_not_shared_again() -> None:
    one, other = values_of(run_ranks(touched, 2, env=TUNED))
    assert one == other
    assert one[0] == "on rank 1 optimizer.state was used"


def tuned_with(options: dict[str, Any]) -> None:
    hvd.init()
    with pytest.MonkeyPatch.context() as patched:
        clock(patched, lambda: 1.0)
        trained(lambda: iter(range(STEPS)), **options)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({}, ["shared_step", "bucket_bytes"]),
        ({"shared_step": False}, ["bucket_bytes"]),
        ({"shared_step": "host"}, ["bucket_bytes"]),
        ({"bucket_bytes": 1 << 20}, ["shared_step"]),
    ],
)
def test_what_the_user_has_set_is_not_tried(
    tmp_path: Path, options: dict[str, Any], left: list[str]
) -> None:
    log = tmp_path / "log"
    run_ranks(tuned_with, 2, args=[options], env=TUNED | {"CIRANDA_AUTOTUNE_LOG": str(log)})
    tried = [line for line in log.read_text().splitlines() if " instead of " in line]
    pace = ["CIRANDA_OVERLAP", "CIRANDA_SPIN_MICROSECONDS"]
    assert list(dict.fromkeys(line.split("=")[0] for line in tried)) == left + pace


def two_optimizers() -> list[bool]:
    hvd.init()
    one = trained(lambda: iter(()))[1]
    other = trained(lambda: iter(()))[1]
    return [optimizer._ciranda_core.tunes() for optimizer in (one, other)]


def test_the_first_optimizer_is_tuned() -> None:
    assert values_of(run_ranks(two_optimizers, 2, env=TUNED)) == [[True, False]] * 2
    assert values_of(run_ranks(two_optimizers, 1, env=TUNED)) == [[False, False]]
    assert values_of(run_ranks(two_optimizers, 2)) == [[False, False]] * 2


def test_a_log_that_cannot_be_written_costs_one_sentence() -> None:
    env = TUNED | {"CIRANDA_AUTOTUNE_LOG": "/nowhere/log"}
    results = run_ranks(two_optimizers, 2, env=env)
    assert results[0].exit_code == 1
    assert results[0].stderr.splitlines()[-1] == (
        "ciranda.errors.InvalidArgumentError: CIRANDA_AUTOTUNE_LOG=/nowhere/log: cannot write it: "
        "No such file or directory"
    )
