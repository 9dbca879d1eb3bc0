"""Fashion-MNIST in tasks that a coordinator gives to workers of parameter servers.

    ciranda run -np 2 --ps 1 --coordinator examples/fashion_mnist_tasks.py

A worker takes a task when it has done the one before, so that a slow one does less. With
`--restarts 9 --ps-dir DIR` any process may be killed: the job goes on, and each task counts once.
With `--checkpoint-dir DIR --evaluator` one process more scores each checkpoint.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import fashion_mnist as fm
import torch
from torch import nn
from torch.nn import functional as F

import ciranda.torch as cr
from ciranda.torch import ps

BATCHES_A_TASK = 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of the four files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, help="of each process, for its share of the cores")
    return parser.parse_args()


args = arguments()
if args.threads:
    torch.set_num_threads(args.threads)


@ps.per_worker
def data() -> tuple[fm.Split, fm.Split]:
    folder = args.data or fm.DEBIAN_DIR
    return (
        fm.read_split(folder, fm.FILES["train_images"], fm.FILES["train_labels"]),
        fm.read_split(folder, fm.FILES["test_images"], fm.FILES["test_labels"]),
    )


@ps.per_worker
def trainer() -> tuple[nn.Module, Any]:
    model = fm.make_mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    return model, cr.DistributedOptimizer(optimizer, model.named_parameters(), ps=ps.Async())


@ps.task
def count_images() -> int:
    return len(data()[0].labels)


@ps.task
def train(epoch: int, first: int) -> float:
    """The mean loss of so many batches of the epoch's order; as many pushes each time."""
    split, (model, optimizer) = data()[0], trainer()
    order = torch.randperm(len(split.labels), generator=torch.Generator().manual_seed(epoch))
    end = first + BATCHES_A_TASK * args.batch_size
    losses = []
    for images, labels in fm.batches(split, order[first:end].tolist(), args.batch_size):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@ps.task
def score() -> float:
    return accuracy(trainer()[0], data()[1])


def accuracy(model: nn.Module, split: fm.Split) -> float:
    model.eval()
    with torch.no_grad():
        correct = sum(
            int((model(images).argmax(1) == labels).sum())
            for images, labels in fm.batches(split, range(len(split.labels)), fm.TEST_BATCH)
        )
    model.train()
    return 100.0 * correct / len(split.labels)


def main() -> None:
    images = ps.schedule(count_images).result()
    print(f"begins with an accuracy of {ps.schedule(score).result():.2f} %")
    for epoch in range(args.epochs):
        firsts = itertools.count(0, BATCHES_A_TASK * args.batch_size)
        parts = itertools.takewhile(lambda first: first < images, firsts)
        losses = [ps.schedule(train, epoch, first) for first in parts]
        ps.join()
        loss = sum(each.result() for each in losses) / len(losses)
        print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {ps.schedule(score).result():.2f} %")


if ps.is_evaluator():
    scored = fm.make_mlp()
    ps.evaluate(scored, lambda: {"accuracy": accuracy(scored, data()[1])})
    sys.exit()
cr.init()
ps.run(main)
