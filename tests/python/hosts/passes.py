"""A rank of the tests here: makes other numbers of backward passes before each step than its peers,
first with a step of its own, then with one that it shares."""

from __future__ import annotations

import copy
import json

import torch
from torch import nn
from train import make_model

import ciranda.torch as hvd


def backward(model: nn.Module, rank: int, step: int) -> None:
    batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + rank))
    model(batch.double()).square().mean().backward()


def main() -> None:
    hvd.init()
    for shared_step in (False, "host"):
        model = make_model()
        alone = copy.deepcopy(model)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            backward_passes_per_step=3,
            shared_step=shared_step,
        )
        for passes in ((3, 3, 3, 3), (3, 3, 3, 3), (3, 1, 0, 2)):
            optimizer.zero_grad()
            alone.zero_grad()
            for rank, count in enumerate(passes):
                for step in range(count):
                    backward(alone, rank, step)
            for step in range(passes[hvd.rank()]):
                backward(model, hvd.rank(), step)
            optimizer.step()
            with torch.no_grad():
                for parameter in alone.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1 / hvd.size())
        off = max(
            float((ours - theirs).detach().abs().max())
            for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True)
        )
        print(json.dumps({"shared_step": shared_step, "off": off}), flush=True)


if __name__ == "__main__":
    main()
