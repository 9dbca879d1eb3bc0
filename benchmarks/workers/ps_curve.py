"""Accuracy on Fashion-MNIST against time: alone, a ring, or parameter servers in a mode of theirs.

Rank 0 keeps copies of the parameters while it trains, and looks at them when all is over.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import control
import torch
from torch import nn
from torch.nn import functional as F

import ciranda.torch as hvd

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from fashion_mnist import DEBIAN_DIR, FILES, Split, read_split

BATCH = 64
LEARNING_RATE = 1e-3
ADAGRAD_LEARNING_RATE = 1e-2
# How often the ranks of a ring ask each other whether the time is over.
STEPS_PER_LOOK = 10

MODES: dict[str, Any] = {
    "single": None,  # one rank
    "ring": None,
    "sync": hvd.ps.Sync(),
    "ssp": hvd.ps.SSP(2),
    "async": hvd.ps.Async(),
    "downpour": hvd.ps.Downpour(n_push=8, n_fetch=8),
}


def read(which: str) -> Split:
    return read_split(DEBIAN_DIR, FILES[f"{which}_images"], FILES[f"{which}_labels"])


def make_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


@torch.no_grad()
def accuracy(model: nn.Module, parameters: list[torch.Tensor], test: Split) -> float:
    for parameter, value in zip(model.parameters(), parameters, strict=True):
        parameter.copy_(value)
    return float((model(test.images).argmax(1) == test.labels).float().mean())


class Run:
    def __init__(self, mode: str, seed: int) -> None:
        hvd.init()
        self.ring = MODES[mode] is None
        torch.manual_seed(seed)
        self.model = make_model()
        optimizer: torch.optim.Optimizer
        if mode == "downpour":  # published with it
            optimizer = torch.optim.Adagrad(self.model.parameters(), lr=ADAGRAD_LEARNING_RATE)
        else:
            optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE, fused=True)
        self.optimizer = hvd.DistributedOptimizer(
            optimizer,
            self.model.named_parameters(),
            **({} if self.ring else {"ps": MODES[mode]}),
        )
        self.order = torch.Generator().manual_seed(seed + hvd.rank())
        self.train = read("train")

    def step(self) -> float:
        """How long it has computed."""
        chosen = torch.randint(len(self.train.labels), (BATCH,), generator=self.order)
        images, labels = self.train.images[chosen], self.train.labels[chosen]
        begin = time.thread_time()
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(images), labels).backward()
        computed = time.thread_time() - begin
        self.optimizer.step()
        return computed

    def over(self, steps: int, end: float) -> bool:
        late = time.perf_counter() >= end
        if not self.ring:
            return late
        if steps % STEPS_PER_LOOK:
            return False
        return bool(hvd.allreduce(torch.tensor(float(late)), op=hvd.Max))

    def for_seconds(self, seconds: float, every_s: float, slowness: float) -> control.Reply:
        begin = time.perf_counter()
        steps = 0
        kept: list[tuple[float, list[torch.Tensor]]] = []
        while not self.over(steps, begin + seconds):
            if hvd.rank() == 0 and time.perf_counter() - begin >= every_s * len(kept):
                values = [parameter.detach().clone() for parameter in self.model.parameters()]
                kept.append((time.perf_counter() - begin, values))
            computed = self.step()
            steps += 1
            if slowness > 1.0:
                time.sleep((slowness - 1.0) * computed)
        elapsed_s = time.perf_counter() - begin
        rank = hvd.rank()
        hvd.shutdown()  # at once: servers wait no more for who has left
        reply: control.Reply = {"images": steps * BATCH, "elapsed_s": elapsed_s}
        if rank == 0:
            model, test = make_model(), read("test")
            reply["curve"] = [(at, accuracy(model, values, test)) for at, values in kept]
        return reply


def main() -> None:
    parser = control.make_parser()
    parser.add_argument("--side", choices=sorted(MODES), required=True)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    run = Run(args.side, args.seed)
    rank = hvd.rank()

    def handle(command: control.Command) -> control.Reply:
        """{"seconds": s, "every_s": s, "slowness": one factor a rank}, once."""
        return run.for_seconds(command["seconds"], command["every_s"], command["slowness"][rank])

    control.serve(args, rank, handle)


if __name__ == "__main__":
    main()
