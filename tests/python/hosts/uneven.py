"""A rank of the tests here: `uneven.py SHARED_STEP BATCHES...` trains so many batches of each rank
in each epoch, joins, and compares with one process that averages with zeros. An epoch in which all
ranks of a host join early ends with broadcasts, as with Horovod."""

from __future__ import annotations

import copy
import json
import sys

import torch
from torch import nn
from train import make_model

import ciranda.torch as hvd


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + rank))
    return model(batch.double()).square().mean()


def main() -> None:
    hvd.init()
    model = make_model()
    alone = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=1e-3),
        model.named_parameters(),
        shared_step=sys.argv[1],
        max_grad_norm=1.0,
    )
    plain = torch.optim.Adam(alone.parameters(), lr=1e-3)
    equal = []
    for epoch, text in enumerate(sys.argv[2:]):
        batches = [int(count) for count in text.split(",")]
        for step in range(batches[hvd.rank()]):
            optimizer.zero_grad()
            loss_of(model, 10 * epoch + step, hvd.rank()).backward()
            optimizer.step()
        last = hvd.join()
        hosts = [
            batches[first : first + hvd.local_size()]
            for first in range(0, hvd.size(), hvd.local_size())
        ]
        if any(max(of_host) < max(batches) for of_host in hosts):
            hvd.broadcast_parameters(model.state_dict(), root_rank=last)
            hvd.broadcast_optimizer_state(optimizer, root_rank=last)
        for step in range(max(batches)):
            plain.zero_grad()
            for rank, count in enumerate(batches):
                if step < count:
                    (loss_of(alone, 10 * epoch + step, rank) / hvd.size()).backward()
            nn.utils.clip_grad_norm_(alone.parameters(), 1.0)
            plain.step()
        state = optimizer.state_dict()["state"]
        mine = [p.detach().tolist() for p in model.parameters()]
        mine += [value.tolist() for entry in state.values() for value in entry.values()]
        everybodys = hvd.allgather_object(hash(json.dumps(mine)))
        equal.append(all(theirs == everybodys[0] for theirs in everybodys))
    off = max(
        float((ours - theirs).detach().abs().max() / theirs.detach().abs().max())
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True)
    )
    why = optimizer.why_not_shared()
    print(json.dumps({"off": off, "equal": equal, "why": why}), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
