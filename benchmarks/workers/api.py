"""Calls of the Python API, each told by its name: what a step or a start pays for them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import control
import torch
from torch import nn

import ciranda.torch as hvd

Case = Callable[[], object]
TENSORS = 400


def reductions() -> dict[str, Case]:
    one = torch.zeros(1)
    mib4 = torch.rand(1 << 20)
    tensors = [(f"parameter.{i}", torch.zeros(64)) for i in range(TENSORS)]
    return {
        "allreduce_, named": lambda: hvd.allreduce_(one, name="bench.one", op=hvd.Sum),
        "allreduce_, unnamed": lambda: hvd.allreduce_(one, op=hvd.Sum),
        "broadcast_parameters": lambda: hvd.broadcast_parameters(tensors, root_rank=0),
        "Average of 4 MiB": lambda: hvd.allreduce_(mib4, name="bench.average", op=hvd.Average),
        "Adasum of 4 MiB": lambda: hvd.allreduce_(mib4, name="bench.adasum", op=hvd.Adasum),
    }


def batch_norms() -> dict[str, Case]:
    """Forward, and forward with backward, of 16 images of 64 channels."""
    images = torch.rand(16, 64, 16, 16)
    cases: dict[str, Case] = {}
    for name, layer in (
        ("BatchNorm2d", nn.BatchNorm2d(64)),
        ("SyncBatchNorm", hvd.SyncBatchNorm(64)),
    ):

        def forward(layer: nn.Module = layer) -> None:
            with torch.no_grad():
                layer(images)

        def both(layer: nn.Module = layer) -> None:
            layer(images).sum().backward()

        cases[f"{name}, forward"] = forward
        cases[f"{name}, both"] = both
    return cases


def training_step() -> Case:
    """Of a model for MNIST, with batches of 32."""
    model = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters()
    )
    images, labels = torch.rand(32, 784), torch.randint(10, (32,))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def main() -> None:
    args = control.make_parser().parse_args()
    torch.set_num_threads(1)
    hvd.init()
    step = training_step()
    steps = dict.fromkeys(("step", "step, once more", "step, traced"), step)
    cases = reductions() | batch_norms() | steps
    with tempfile.TemporaryDirectory(prefix="bench-api-") as folder:  # of this rank

        def handle(command: control.Command) -> control.Reply:
            if command["case"] != "step, traced":
                return control.time_calls(cases[command["case"]], command)
            hvd.start_timeline(os.path.join(folder, "timeline.json"))
            reply = control.time_calls(cases[command["case"]], command)
            hvd.stop_timeline()
            return reply

        control.serve(args, hvd.rank(), handle)
        hvd.shutdown()


if __name__ == "__main__":
    main()
