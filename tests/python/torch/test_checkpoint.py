"""docs/training.md's checkpoint: saved by rank 0 within an epoch, gone on with other ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks, values_of
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import ciranda.torch as hvd

GLOBAL_BATCH, SAMPLES, EPOCHS = 12, 120, 2
STEPS = EPOCHS * SAMPLES // GLOBAL_BATCH


def train(folder: str, stop_after: int, shared_step: Any) -> list[float]:
    """Until so many steps are done since the first life began."""
    hvd.init()
    path = Path(folder) / "checkpoint.pt"
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(SAMPLES, 4), torch.randint(0, 3, (SAMPLES,)))
    sampler = hvd.data.DistributedSampler(data, seed=5)
    batches = DataLoader(data, GLOBAL_BATCH // hvd.size(), sampler=sampler)

    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.02)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), shared_step=shared_step if hvd.size() > 1 else False
    )
    decay = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
    schedule = hvd.schedules.warmup(optimizer, steps=9, after=decay, start=0.25)

    rest: dict[str, Any] = {"steps": 0}
    if hvd.rank() == 0 and path.exists():
        rest = torch.load(path, weights_only=True)
        model.load_state_dict(rest.pop("model"))
        optimizer.load_state_dict(rest.pop("optimizer"))
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    rest = hvd.broadcast_object(rest)
    if "sampler" in rest:
        sampler.load_state_dict(rest["sampler"])
        schedule.load_state_dict(rest["schedule"])

    steps = rest["steps"]
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, labels in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs.double()), labels).backward()
            optimizer.step()
            schedule.step()
            sampler.advance(len(labels))
            steps += 1
            if steps == stop_after and hvd.rank() == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                    "sampler": sampler.state_dict(),
                    "steps": steps,
                }
                torch.save(state, path)
            if steps == stop_after:
                return nn.utils.parameters_to_vector(model.parameters()).tolist()
    raise AssertionError(f"ended after {steps} steps")


@pytest.mark.parametrize(
    ("shared_step", "sizes"),
    [("host", (2, 3, 4)), (False, (2, 3, 4)), ("host", (3, 2, 1)), ("auto", (3, 2, 1))],
)
def test_training_goes_on_as_if_one_process_had_never_stopped(
    tmp_path: Path, shared_step: str | bool, sizes: tuple[int, int, int]
) -> None:
    """The global batch stays, so each step takes the same samples whatever the number of ranks."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    (wanted,) = values_of(run_ranks(train, 1, args=[str(whole), STEPS, False]))
    for size, stop_after in zip(sizes, (4, 11, STEPS), strict=True):
        found = values_of(run_ranks(train, size, args=[str(parts), stop_after, shared_step]))
    assert found[0] == pytest.approx(wanted, rel=1e-9)
    assert all(each == found[0] for each in found)
