"""A rank of test_hosts.py: trains until autotuning has come to an end, by a clock for which a step
takes half the time where bfloat16 goes between hosts, and half where it goes over four streams."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import torch
from torch import nn

import ciranda.torch as hvd
from ciranda.torch import rank_optimizer


def main() -> None:
    hvd.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 300), nn.Linear(300, 5))
    made: list[Any] = []  # before it is tuned

    def options() -> str:
        return made[0]._ciranda_core.described_options() if made else ""

    def rounds() -> bool:
        return "compression=bfloat16" in options()

    def streams() -> int:
        given = re.search(r"streams=(\d+)", options())
        return int(given[1]) if given else 1

    now = itertools.accumulate(
        (0.5 if rounds() else 1.0) * (0.5 if streams() == 4 else 1.0) for _ in itertools.count()
    )
    rank_optimizer.time.perf_counter = lambda: next(now)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model.named_parameters()
    )
    made.append(optimizer)
    steps = 0
    while optimizer._ciranda_core.tunes():
        batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(steps + hvd.rank()))
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        steps += 1
    sums = [p.detach().sum().item() for p in model.parameters()]
    equal = hvd.allgather_object(sums) == [sums] * hvd.size()
    print(json.dumps({"rounds": rounds(), "streams": streams(), "equal": equal}))
    hvd.shutdown()


if __name__ == "__main__":
    main()
