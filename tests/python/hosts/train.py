"""A rank of the tests here: `train.py SHARED_STEP [STEPS]` trains beside a copy that sees the
joined batch, and compares."""

from __future__ import annotations

import copy
import json
import sys

import torch
from torch import nn

import ciranda.torch as hvd


def make_model() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 5))
    return model.double()


def average_over_the_ends() -> float | None:
    """Of the numbers of the first and the last rank, which are on different hosts."""
    if hvd.size() < 3:
        return None
    ends = hvd.add_process_set([0, hvd.size() - 1])
    if not ends.included():
        return None
    mine = torch.full((5,), float(hvd.rank()))
    average: float = hvd.allreduce(mine, process_set=ends)[0].item()
    return average


def main() -> None:
    shared_step = {"off": False}.get(sys.argv[1], sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    hvd.init()
    model = make_model()
    alone = copy.deepcopy(model)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=1e-3),
        model.named_parameters(),
        shared_step=shared_step,
        max_grad_norm=1.0,
    )
    plain = torch.optim.Adam(alone.parameters(), lr=1e-3)
    for step in range(steps):
        batch = torch.randn(hvd.size(), 8, 64, generator=torch.Generator().manual_seed(step))
        batch = batch.double()
        optimizer.zero_grad()
        model(batch[hvd.rank()]).square().mean().backward()
        optimizer.step()
        plain.zero_grad()
        alone(batch.flatten(0, 1)).square().mean().backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        plain.step()
        print(f"step {step}", flush=True)
    off = max(
        float((ours - theirs).detach().abs().max() / theirs.detach().abs().max())
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True)
    )
    everybodys = hvd.allgather_object([p.detach().sum().item() for p in model.parameters()])
    print(
        json.dumps(
            {
                "off": off,
                "equal": all(e == everybodys[0] for e in everybodys),
                "of_a_set": average_over_the_ends(),
            }
        )
    )
    hvd.shutdown()


if __name__ == "__main__":
    main()
