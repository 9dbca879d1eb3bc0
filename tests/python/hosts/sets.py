"""A rank of the tests here: ranks 0, 1 and 3 of four train as a process set, and compare with one
process."""

from __future__ import annotations

import copy
import json

import torch
from torch import nn
from train import make_model

import ciranda.torch as hvd

RANKS = [0, 1, 3]


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + rank))
    return model(batch.double()).square().mean()


def difference() -> tuple[float, str]:
    """To one process, in the parameters; and why the step is not shared."""
    model = make_model()
    alone = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=1e-3),
        model.named_parameters(),
        process_set=hvd.add_process_set(RANKS),
        max_grad_norm=1.0,
    )
    plain = torch.optim.Adam(alone.parameters(), lr=1e-3)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        optimizer.step()
        plain.zero_grad()
        for rank in RANKS:
            (loss_of(alone, step, rank) / len(RANKS)).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
        plain.step()
    off = max(
        float((ours - theirs).detach().abs().max() / theirs.detach().abs().max())
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True)
    )
    return off, optimizer.why_not_shared()


def main() -> None:
    hvd.init()
    if hvd.rank() in RANKS:
        print(json.dumps(difference()), flush=True)
    else:
        hvd.add_process_set(RANKS)
    hvd.shutdown()


if __name__ == "__main__":
    main()
