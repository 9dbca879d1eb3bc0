"""Trains a small model, in an elastic loop or a plain one, and notes the time of each step.

It appends a line for each step to steps-PID: monotonic_ns, the step's number, the rank.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import ciranda.torch as cr
from ciranda.torch import elastic

MODELS = {"tiny": (16, 16, 2), "mlp": (784, 512, 512, 10)}
SAMPLES = 4096


def make_model(widths: tuple[int, ...]) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=["elastic", "plain"], required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1 << 40, help="about as many, then end")
    args = parser.parse_args()
    cr.init()
    torch.manual_seed(1)
    widths = MODELS[args.model]
    model = make_model(widths)
    optimizer = cr.DistributedOptimizer(
        torch.optim.Adam(model.parameters()), model.named_parameters(), shared_step=False
    )
    data = TensorDataset(torch.randn(SAMPLES, widths[0]), torch.randint(widths[-1], (SAMPLES,)))
    log = os.open(f"steps-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def train(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    def note(step: int) -> None:
        os.write(log, f"{time.monotonic_ns()} {step} {cr.rank()}\n".encode())

    done = 0
    if args.loop == "plain":
        share = torch.utils.data.Subset(data, range(cr.rank(), SAMPLES, cr.size()))
        while done < args.steps:
            for batch in DataLoader(share, args.batch, shuffle=True, drop_last=True):
                train(*batch)
                done += 1
                note(done)
        return
    loader = DataLoader(data, args.batch, shuffle=True, drop_last=True)
    state = elastic.TorchState(model, optimizer)
    while state.step < args.steps:
        for step in elastic.steps(loader, state):
            with step as batch:
                train(*batch)
            if step.done:
                note(step.number + 1)


if __name__ == "__main__":
    main()
