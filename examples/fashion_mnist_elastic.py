"""Fashion-MNIST on ranks that may be lost at any time: docs/elastic.md.

    ciranda run -np 4 --min-np 4 --spares 1 examples/fashion_mnist.py --elastic
    ciranda run -np 4 --min-np 2 examples/fashion_mnist.py --elastic   # goes on with 2 of 4

Kill a rank: with a spare in its place the training ends with the parameters that it would have had
anyway. What makes the training elastic is marked with (1) to (6).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import fashion_mnist as fm
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import ciranda.torch as hvd
from ciranda.torch import elastic

ROW = (
    "| {epoch:5d} | {loss:6.4f} | {accuracy:6.2f} % | {images_per_s:9,.0f} | {ranks:5d} |"
    " {elapsed_s:7.1f} s |"
)


def train(args: argparse.Namespace) -> dict[str, Any]:
    directory = fm.find_data(args.data, ranks_meet=False)
    train_split = fm.read_split(directory, fm.FILES["train_images"], fm.FILES["train_labels"])
    test_split = fm.read_split(directory, fm.FILES["test_images"], fm.FILES["test_labels"])
    images_in_all = len(train_split.labels)

    torch.manual_seed(args.seed)
    model = fm.MODELS[args.model]()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=args.lr, fused=True), model.named_parameters()
    )
    # (1) An ordinary loader, without a sampler: steps() deals its samples to the ranks there are.
    loader = DataLoader(TensorDataset(*train_split), args.batch_size, shuffle=True)
    # (2) What training changes. All ranks begin with rank 0's, and one that joins gets it.
    state = elastic.TorchState(model, optimizer, loss_sum=0.0, began=0.0, epoch_began=0.0)

    def say(text: str) -> None:
        # (3) A process that joins comes through the whole program, and what it skips was said.
        if hvd.rank() == 0 and not state.skipping:
            print(text, flush=True)

    def figures_of_epoch() -> dict[str, float]:
        seconds = time.time() - state.epoch_began
        accuracy = fm.test_accuracy(model, test_split, args)
        elapsed = time.time() - state.began
        mean = fm.mean_of_ranks(args, {"seconds": seconds, "elapsed": elapsed})
        return {
            "loss": state.loss_sum / images_in_all,
            "images_per_s": images_in_all / mean["seconds"],
            "ranks": hvd.size(),
            "accuracy": accuracy,
            "elapsed_s": mean["elapsed"],
        }

    config = {
        "model": args.model,
        "parameters": fm.parameter_count(model),
        "ranks": elastic.agreed(hvd.size),  # before, each process is alone
        "backend": args.backend,
        "elastic": True,
        "threads": torch.get_num_threads(),
        "batch_size": args.batch_size,
        "lr": args.lr,
        "epochs": args.epochs,
        "seed": args.seed,
    }
    say(
        f"{args.model}: {config['parameters']:,} parameters; {config['ranks']} rank(s) with"
        f" {config['threads']} thread(s) and a batch of {args.batch_size} each\n\n"
        "| epoch |   loss | accuracy |  images/s | ranks |   elapsed |\n"
        "|------:|-------:|---------:|----------:|------:|----------:|"
    )
    rows: list[dict[str, Any]] = []
    state.began = time.time()
    said = time.perf_counter()
    for epoch in range(args.epochs):
        model.train()
        state.loss_sum, state.epoch_began = 0.0, time.time()
        for step in elastic.steps(loader, state):
            # (4) Redone or not, a block's learning rate depends on where it is in the pass.
            rate = fm.learning_rate(
                args.lr, hvd.size(), epoch + step.begin / images_in_all, args.epochs
            )
            for group in optimizer.param_groups:
                group["lr"] = rate
            with step as (images, labels):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(images), labels)
                # Of all ranks, for a lost one cannot say what it has summed up.
                block_loss = hvd.allreduce(loss.detach() * len(labels), name="loss", op=hvd.Sum)
                loss.backward()
                optimizer.step()
            # (5) What must happen once comes after the block, if it counts.
            if step.done:
                state.loss_sum += block_loss.item()
                if time.perf_counter() - said > fm.REPORT_EVERY_S:
                    said = time.perf_counter()
                    say(f"  epoch {epoch + 1}: {100 * step.end // images_in_all} %")
        # (6) A process that joins later gets the figures, too.
        row = {"epoch": epoch + 1, **elastic.agreed(figures_of_epoch)}
        rows.append(row)
        say(ROW.format(**row))
    return {"config": config, "rows": rows, "total_s": rows[-1]["elapsed_s"]}
