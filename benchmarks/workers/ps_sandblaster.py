"""Accuracy on Fashion-MNIST against time with Sandblaster L-BFGS: a process of the job; its
coordinator answers commands."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import control
import torch
from ps_curve import make_model, read
from torch.nn import functional as F

import ciranda.torch as hvd
from ciranda.torch import ps

PORTION = 5_000  # images
SEED = 0


@ps.per_worker
def problem() -> Any:
    torch.manual_seed(SEED)
    model = make_model()
    return model, ps.Sandblaster(model.named_parameters()), read("train"), read("test")


@ps.task(copies=2)
def portion(first: int) -> float:
    model, gradients, train, _ = problem()
    part = slice(first, first + PORTION)
    model.zero_grad()
    loss = F.cross_entropy(model(train.images[part]), train.labels[part], reduction="sum")
    loss = loss / len(train.labels)
    loss.backward()
    gradients.push()
    return loss.item()


@ps.task
def score() -> float:
    model, _, _, test = problem()
    with torch.no_grad():
        return float((model(test.images).argmax(1) == test.labels).float().mean())


@ps.task
def count() -> int:
    return len(problem()[2].labels)


class _OverError(Exception):
    pass


def for_seconds(images: int, seconds: float, every_s: float) -> control.Reply:
    curve: list[tuple[float, float]] = []
    evaluations = 0
    begin = time.perf_counter()

    def portions() -> list[ps.Future[float]]:
        nonlocal evaluations
        elapsed_s = time.perf_counter() - begin
        if elapsed_s >= every_s * len(curve):
            curve.append((elapsed_s, ps.schedule(score).result()))
        if elapsed_s >= seconds:
            raise _OverError
        evaluations += 1
        return [ps.schedule(portion, first) for first in range(0, images, PORTION)]

    with contextlib.suppress(_OverError):
        ps.lbfgs(portions, max_iter=1_000_000, tolerance_change=0.0)
    return {
        "images": evaluations * images,
        "elapsed_s": time.perf_counter() - begin,
        "curve": curve,
    }


def main() -> None:
    parser = control.make_parser()
    parser.add_argument("--side", required=True)
    parser.add_argument("--seed", type=int, required=True)
    args = parser.parse_args()
    global SEED
    SEED = args.seed
    torch.set_num_threads(1)
    hvd.init()

    def coordinate() -> None:
        images = ps.schedule(count).result()

        def handle(command: control.Command) -> control.Reply:
            """{"seconds": s, "every_s": s}, once."""
            return for_seconds(images, command["seconds"], command["every_s"])

        control.serve(args, 0, handle)

    ps.run(coordinate)


if __name__ == "__main__":
    main()
