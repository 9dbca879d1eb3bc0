"""Fashion-MNIST on one process or on many.

    python examples/fashion_mnist.py                        # one process, no launcher
    ciranda run -np 2 examples/fashion_mnist.py             # two, on this machine
    ciranda run -np 2 --ps 1 examples/fashion_mnist.py --backend ps --mode async
    ciranda run -np 2 --ps 1 --checkpoint-dir DIR --checkpoint-every 10s --evaluator \\
        examples/fashion_mnist.py --backend ps        # test accuracy over time: DIR/curve.csv
    ciranda run -np 2 --spares 1 examples/fashion_mnist.py --elastic  # fashion_mnist_elastic.py

What makes an ordinary PyTorch script a distributed one is marked with (1) to (6).
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import os
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DistributedSampler

import ciranda.torch as hvd

CLASSES = 10
DEBIAN_DIR = Path("/usr/share/datasets/fashion-mnist")
DOWNLOAD_DIR = Path("data")
FILES = {
    "train_images": "train-images-idx3-ubyte.gz",
    "train_labels": "train-labels-idx1-ubyte.gz",
    "test_images": "t10k-images-idx3-ubyte.gz",
    "test_labels": "t10k-labels-idx1-ubyte.gz",
}
# The training set is 47 MB; a header that promises more than this is not Fashion-MNIST's.
IDX_BYTES_MAX = 256 * 1024 * 1024
IDX_UBYTE = 0x08
IDX_DIMENSIONS_MAX = 3
PIXEL_MEAN, PIXEL_STD = 0.2860, 0.3530  # of the training images, pixels in 0..1
TEST_BATCH = 1000
REPORT_EVERY_S = 10.0  # where no progress bar can be drawn


# --- data ---------------------------------------------------------------------------------------


def read_idx(path: Path) -> Tensor:
    """One gzipped IDX file of unsigned bytes; ValueError says what is wrong with it."""
    try:
        with gzip.open(path) as file:
            magic = file.read(4)
            if len(magic) < 4:
                raise ValueError(f"{path}: ends inside the magic number")
            zeros, element, dimensions = struct.unpack(">HBB", magic)
            if zeros != 0 or element != IDX_UBYTE or not 1 <= dimensions <= IDX_DIMENSIONS_MAX:
                raise ValueError(f"{path}: magic number {magic.hex()} is not an IDX file of bytes")
            sizes = file.read(4 * dimensions)
            if len(sizes) < 4 * dimensions:
                raise ValueError(f"{path}: ends inside the header")
            shape = struct.unpack(f">{dimensions}I", sizes)
            expected = math.prod(shape)
            if not 0 < expected <= IDX_BYTES_MAX:
                raise ValueError(f"{path}: shape {shape} is empty or over {IDX_BYTES_MAX} bytes")
            # One byte more than expected, so that a file that goes on is noticed too.
            payload = bytearray(file.read(expected + 1))
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged gzip file: {error}") from error
    if len(payload) != expected:
        more_or_less = "more" if len(payload) > expected else "less"
        raise ValueError(f"{path}: holds {more_or_less} than the {expected} bytes of {shape}")
    return torch.frombuffer(payload, dtype=torch.uint8).view(shape)


class Split(NamedTuple):
    """Images as normalised floats, N x 1 x 28 x 28, and their classes."""

    images: Tensor
    labels: Tensor


def read_split(directory: Path, images_file: str, labels_file: str) -> Split:
    images, labels = read_idx(directory / images_file), read_idx(directory / labels_file)
    if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
        raise ValueError(f"{directory}: {tuple(images.shape)} images, {tuple(labels.shape)} labels")
    if labels.max() >= CLASSES:
        raise ValueError(f"{directory}: a label is over {CLASSES - 1}")
    pixels = images.unsqueeze(1).float().div_(255).sub_(PIXEL_MEAN).div_(PIXEL_STD)
    return Split(pixels, labels.long())


def find_data(wanted: Path | None, ranks_meet: bool) -> Path:
    """The folder with the four files; the first rank of each host downloads them if need be, where
    the others can wait for it."""
    places = [wanted] if wanted else [DEBIAN_DIR, DOWNLOAD_DIR / "FashionMNIST" / "raw"]

    def found() -> Path | None:
        return next((p for p in places if all((p / f).is_file() for f in FILES.values())), None)

    if not wanted and ranks_meet and hvd.local_rank() == 0 and not found():
        try:
            from torchvision.datasets import FashionMNIST

            FashionMNIST(str(DOWNLOAD_DIR), download=True)
        except (ImportError, OSError, RuntimeError) as error:
            print(f"torchvision cannot download Fashion-MNIST: {error}", file=sys.stderr)
    if ranks_meet:
        hvd.barrier()
    directory = found()
    if directory is None:
        sentence = (
            f"Fashion-MNIST is not in {' or '.join(map(str, places))}: install it with"
            " `sudo apt install dataset-fashion-mnist`, or torchvision with"
            " `pip install torchvision`, or name its folder with --data."
        )
        raise SystemExit(sentence if hvd.rank() == 0 else 1)
    return directory


def test_shard(count: int, rank: int, size: int) -> range:
    """This rank's test images: all ranks together see each one exactly once, nobody a copy."""
    return range(rank, count, size)


def batches(split: Split, indices: Iterable[int], batch_size: int) -> Iterator[tuple[Tensor, ...]]:
    for batch in torch.tensor(list(indices), dtype=torch.long).split(batch_size):
        yield split.images[batch], split.labels[batch]


# --- models -------------------------------------------------------------------------------------


def make_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(28 * 28, 512), nn.ReLU(), nn.Dropout(0.2)),
        *(nn.Linear(512, 512), nn.ReLU()),
        nn.Linear(512, CLASSES),
    )


def make_small_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(32 * 14 * 14, 64), nn.ReLU()),
        nn.Linear(64, CLASSES),
    )


def make_large_cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 128, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(128, 256, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(256, 512, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(512 * 3 * 3, 512), nn.ReLU()),
        *(nn.Linear(512, 512), nn.ReLU()),
        nn.Linear(512, CLASSES),
    )


MODELS = {"mlp": make_mlp, "small": make_small_cnn, "large": make_large_cnn}


def parameter_count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


# --- training -----------------------------------------------------------------------------------


MODES = {"async": hvd.ps.Async(), "ssp": hvd.ps.SSP(2), "sync": hvd.ps.Sync()}


def learning_rate(base_lr: float, joined: int, epochs_done: float, epochs: int) -> float:
    """Scaled linearly: from one rank's rate to that of `joined` ranks over the first epoch, then
    down."""
    warm_up = 1 + (joined - 1) * min(epochs_done, 1.0)
    return base_lr * warm_up * (1 - epochs_done / epochs)


def ranks_joined_in_a_step(args: argparse.Namespace) -> int:
    """A ring's step and a round's are one with the mean of all ranks' gradients, and so may be as
    much larger. Async and SSP make a step with each gradient, of one rank's size: their rate stays,
    and Adam's second moments keep a late gradient from becoming a large step."""
    return hvd.size() if args.backend == "ring" or args.mode == "sync" else 1


def waited_s(args: argparse.Namespace) -> tuple[float, float]:
    """Seconds in which this rank has waited for others, and in which it has communicated."""
    if args.backend == "ring":
        stats = hvd.stats()
        return stats["waiting_s"], stats["communicating_s"]
    worker = hvd.ps.stats()["worker"]
    others_s = worker["waiting_for_workers_s"]
    return others_s, worker["waiting_s"] - others_s


def mean_of_ranks(args: argparse.Namespace, values: dict[str, float]) -> dict[str, float]:
    if args.backend == "ps":  # nobody waits: of an epoch that another rank is in, its last figures
        return {name: hvd.ps.average(value, name) for name, value in values.items()}
    mean = hvd.allreduce(torch.tensor(list(values.values()), dtype=torch.float64), name="mean")
    return dict(zip(values, mean.tolist(), strict=True))


def progress(steps: Iterable[Any], count: int, epoch: int) -> Iterator[Any]:
    """A bar on rank 0's terminal; now and then a line where there is none."""
    if hvd.rank() != 0:
        yield from steps
        return
    # Below `ciranda run` stderr is a pipe; COLUMNS says that a terminal is at its other end.
    if sys.stderr.isatty() or "COLUMNS" in os.environ:
        try:
            from tqdm import tqdm

            columns = shutil.get_terminal_size().columns  # COLUMNS, or what the terminal says
            yield from tqdm(
                steps, desc=f"epoch {epoch}", total=count, leave=False, ncols=columns - 1
            )
            return
        except ImportError:
            pass
    said = time.perf_counter()
    for done, step in enumerate(steps):
        yield step
        if time.perf_counter() - said > REPORT_EVERY_S:
            said = time.perf_counter()
            print(f"  epoch {epoch}: {100 * (done + 1) // count} %", flush=True)


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    split: Split,
    sampler: DistributedSampler[Any],
    args: argparse.Namespace,
    epoch: int,
    steps_done: int,
) -> dict[str, float]:
    """One pass over this rank's shard, without the steps that are done; what comes back is about
    all ranks."""
    model.train()
    sampler.set_epoch(epoch)
    joined = ranks_joined_in_a_step(args)
    steps = steps_of_an_epoch(sampler, args)
    left = itertools.islice(batches(split, sampler, args.batch_size), steps_done, None)
    loss_sum, images_seen = torch.zeros(()), 0
    before, start = waited_s(args), time.perf_counter()
    for step, (images, labels) in enumerate(
        progress(left, steps - steps_done, epoch + 1), steps_done
    ):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args.lr, joined, epoch + step / steps, args.epochs)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach() * len(labels)
        images_seen += len(labels)
    seconds, after = time.perf_counter() - start, waited_s(args)

    # (5) Figures of one rank become figures of all.
    mean = mean_of_ranks(
        args,
        {
            "train.loss": loss_sum.item(),
            "train.images": images_seen,
            "train.seconds": seconds,
            "train.waiting_s": after[0] - before[0],
            "train.communicating_s": after[1] - before[1],
        },
    )
    waiting = mean["train.waiting_s"] / mean["train.seconds"]
    communicating = mean["train.communicating_s"] / mean["train.seconds"]
    return {
        "loss": mean["train.loss"] / mean["train.images"],
        "images_per_s": hvd.size() * mean["train.images"] / mean["train.seconds"],
        "waiting_percent": 100 * waiting,
        "communication_percent": 100 * communicating,
        "compute_percent": 100 * (1 - waiting - communicating),
    }


@torch.no_grad()
def test_accuracy(model: nn.Module, split: Split, args: argparse.Namespace) -> float:
    """Percent over the whole test set; each rank looks at its share of it. With parameter servers
    ranks have other parameters at a time, and each looks at all."""
    model.eval()
    ring = args.backend == "ring"
    shard = test_shard(len(split.labels), hvd.rank() if ring else 0, hvd.size() if ring else 1)
    right = sum(
        int((model(images).argmax(dim=1) == labels).sum())
        for images, labels in batches(split, shard, TEST_BATCH)
    )
    mean = {"test.right": float(right), "test.images": float(len(shard))}
    if ring:
        mean = mean_of_ranks(args, mean)
    return 100 * mean["test.right"] / mean["test.images"]


def steps_of_an_epoch(sampler: DistributedSampler[Any], args: argparse.Namespace) -> int:
    return math.ceil(len(sampler) / int(args.batch_size))


def steps_done_before(args: argparse.Namespace) -> int:
    """Of this rank: not 0 if it was killed, and `ciranda run --restarts` has started it again. The
    servers have counted; rounds went on without it."""
    if args.backend == "ring":
        return 0
    server = hvd.ps.stats()["servers"][0]
    if args.mode == "sync":
        return int(server["version"])
    return int(server["workers"][hvd.rank()]["pushes"])


def train(args: argparse.Namespace) -> dict[str, Any]:
    directory = find_data(args.data, ranks_meet=args.backend == "ring")
    train_split = read_split(directory, FILES["train_images"], FILES["train_labels"])
    test_split = read_split(directory, FILES["test_images"], FILES["test_labels"])

    torch.manual_seed(args.seed)
    model = MODELS[args.model]()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, fused=True)

    # (2) Every rank starts from rank 0's parameters and optimizer state. Servers see to it alone.
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    # (3) step() now uses the gradients averaged over all ranks, or gives them to the servers.
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        shared_step=False if args.shared_step == "off" else args.shared_step,
        ps=MODES[args.mode] if args.backend == "ps" else None,
    )
    # (4) Each rank reads its share of the training images, another one every epoch.
    sampler = DistributedSampler(
        range(len(train_split.labels)), hvd.size(), hvd.rank(), shuffle=True, seed=args.seed
    )
    torch.manual_seed(args.seed + hvd.rank())  # ranks must not drop the same neurons

    # (6) Only rank 0 talks.
    is_first = hvd.rank() == 0
    config = {
        "model": args.model,
        "parameters": parameter_count(model),
        "ranks": hvd.size(),
        "backend": args.backend,
        **({"mode": args.mode} if args.backend == "ps" else {}),
        "threads": torch.get_num_threads(),
        "batch_size": args.batch_size,
        "lr": args.lr,
        "epochs": args.epochs,
        "seed": args.seed,
    }
    if is_first:
        print(
            f"{args.model}: {config['parameters']:,} parameters; {hvd.size()} rank(s) with"
            f" {config['threads']} thread(s) and a batch of {args.batch_size} each\n\n"
            "| epoch |   loss | accuracy |  images/s | compute | communication | waiting |\n"
            "|------:|-------:|---------:|----------:|--------:|--------------:|--------:|",
            flush=True,
        )
    rows = []
    start = time.perf_counter()
    steps = steps_of_an_epoch(sampler, args)
    # One step at least, so that there is a last row.
    first_epoch, steps_done = divmod(min(steps_done_before(args), args.epochs * steps - 1), steps)
    for epoch in range(first_epoch, args.epochs):
        row = train_epoch(model, optimizer, train_split, sampler, args, epoch, steps_done)
        steps_done = 0
        row |= {"epoch": epoch + 1, "accuracy": test_accuracy(model, test_split, args)}
        row["elapsed_s"] = time.perf_counter() - start
        rows.append(row)
        if is_first:
            print(
                "| {epoch:5d} | {loss:6.4f} | {accuracy:6.2f} % | {images_per_s:9,.0f}"
                " | {compute_percent:5.1f} % | {communication_percent:11.1f} %"
                " | {waiting_percent:5.1f} % |".format(**row),
                flush=True,
            )
    return {"config": config, "rows": rows, "total_s": time.perf_counter() - start}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train Fashion-MNIST on one or many ranks.")
    parser.add_argument("--model", choices=sorted(MODELS), default="mlp")
    parser.add_argument("--data", type=Path, help="folder with the four .gz files")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank")
    parser.add_argument("--lr", type=float, default=1e-3, help="of one rank; scaled by their count")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", choices=["ring", "ps"], default="ring")
    parser.add_argument("--mode", choices=MODES, default="async", help="of --backend ps")
    parser.add_argument("--shared-step", choices=["auto", "host", "off"], default="auto")
    parser.add_argument("--elastic", action="store_true", help="ranks may be lost, and come back")
    parser.add_argument("--threads", type=int, help="per rank; default: what the launcher set")
    parser.add_argument("--json", type=Path, help="rank 0 writes the curve there")
    args = parser.parse_args(argv)
    if args.elastic and (args.backend, args.shared_step) != ("ring", "auto"):
        parser.error("--elastic trains with --backend ring and --shared-step auto")
    return args


def evaluate(args: argparse.Namespace) -> None:
    """The test accuracy of each checkpoint of the servers, beside the training."""
    directory = find_data(args.data, ranks_meet=False)
    split = read_split(directory, FILES["test_images"], FILES["test_labels"])
    model = MODELS[args.model]()
    hvd.ps.evaluate(model, lambda: {"accuracy": test_accuracy(model, split, args)})


def main() -> None:
    args = parse_args()
    if hvd.ps.is_evaluator():
        evaluate(args)
        return
    hvd.init()  # (1) Find the other ranks.
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.elastic:
        import fashion_mnist_elastic

        curve = fashion_mnist_elastic.train(args)
    else:
        curve = train(args)
    if hvd.rank() == 0:
        print(f"\n{curve['total_s']:.1f} s in all", flush=True)
        if args.json:
            args.json.write_text(json.dumps(curve, indent=2) + "\n")
    hvd.shutdown()


if __name__ == "__main__":
    main()
