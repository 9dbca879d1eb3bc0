"""Training steps on a GPU, on synthetic data, one of several ways.

one          a single process
ciranda one  the same through DistributedOptimizer, in a world of one rank
ddp          DistributedDataParallel over NCCL
ciranda      DistributedOptimizer over NCCL

DDP runs without broadcast_buffers: else it would send the statistics of BatchNorm with each step,
which DistributedOptimizer does not.

Ranks share a GPU where there are fewer: they seem to be on different hosts, or NCCL refuses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import control
import torch
from torch import Tensor, nn
from torch.nn import functional as F

SEED = 7
LEARNING_RATE = 1e-6  # the work of a step must not depend on how many there were before it


class Job(NamedTuple):
    make: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, int, int]
    classes: int


def make_large() -> nn.Module:
    """Three convolutions of 128, 256, 512 and three dense layers, for images of 28 x 28."""
    layers: list[nn.Module] = []
    channels = 1
    for width in (128, 256, 512):
        layers += [nn.Conv2d(channels, width, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    layers.append(nn.Flatten())
    features = 512 * 3 * 3
    for width in (512, 512):
        layers += [nn.Linear(features, width), nn.ReLU()]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, 10))


class Bottleneck(nn.Module):
    EXPANSION = 4

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = width * self.EXPANSION
        self.branch = nn.Sequential(
            *(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != wide:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.branch(images) + self.shortcut(images))


def make_resnet50() -> nn.Module:
    """50 layers, 25.6 M parameters in 161 tensors."""
    layers: list[nn.Module] = [
        *(nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    channels = 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512))):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = width * Bottleneck.EXPANSION
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


JOBS = {
    "large": Job(make_large, 128, (1, 28, 28), 10),
    "resnet50": Job(make_resnet50, 32, (3, 224, 224), 1000),
}


def take_gpu(rank: int, ranks: int) -> torch.device:
    count = torch.cuda.device_count()
    if ranks > count:
        os.environ["NCCL_HOSTID"] = f"rank-{rank}"
    device = torch.device("cuda", rank % count)
    torch.cuda.set_device(device)
    return device


class Trainer:
    """A model, its optimizer and a batch. Sides differ in distribute and reduce, not in step."""

    rank, ranks = 0, 1

    def __init__(self, job: Job) -> None:
        self.job = job
        self.device = take_gpu(self.rank, self.ranks)
        torch.manual_seed(SEED)
        self.model = job.make().to(self.device)
        self.optimizer: Any = torch.optim.SGD(
            self.model.parameters(), lr=LEARNING_RATE, momentum=0.9, fused=True
        )
        torch.manual_seed(SEED + 1 + self.rank)
        self.images = torch.randn(job.batch, *job.shape, device=self.device)
        self.labels = torch.randint(job.classes, (job.batch,), device=self.device)
        self.distribute()

    def distribute(self) -> None:
        pass

    def reduce(self, tensor: Tensor) -> None:
        pass

    def step(self) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.images), self.labels).backward()
        self.optimizer.step()

    def close(self) -> None:
        pass


class CirandaTrainer(Trainer):
    def __init__(self, job: Job) -> None:
        import ciranda.torch as hvd

        self.hvd = hvd
        hvd.init()
        self.rank, self.ranks = hvd.rank(), hvd.size()
        super().__init__(job)

    def distribute(self) -> None:
        self.hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.optimizer = self.hvd.DistributedOptimizer(
            self.optimizer, self.model.named_parameters()
        )

    def reduce(self, tensor: Tensor) -> None:
        self.hvd.allreduce_(tensor, name="benchmark", op=self.hvd.Sum)

    def close(self) -> None:
        self.hvd.shutdown()


class DdpTrainer(Trainer):
    def __init__(self, job: Job) -> None:
        import torch.distributed as dist

        self.dist = dist
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        take_gpu(self.rank, self.ranks)
        dist.init_process_group("nccl")
        super().__init__(job)

    def distribute(self) -> None:
        self.model = nn.parallel.DistributedDataParallel(
            self.model,
            device_ids=[self.device],
            gradient_as_bucket_view=True,
            broadcast_buffers=False,
        )

    def reduce(self, tensor: Tensor) -> None:
        self.dist.all_reduce(tensor)

    def close(self) -> None:
        self.dist.destroy_process_group()


SIDES: dict[str, type[Trainer]] = {
    "one": Trainer,
    "ciranda one": CirandaTrainer,
    "ddp": DdpTrainer,
    "ciranda": CirandaTrainer,
}


def seconds_of(calls: int, call: Callable[[], object]) -> float:
    """Until the GPU has done them all."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = control.make_parser()
    parser.add_argument("--side", choices=sorted(SIDES), required=True)
    parser.add_argument("--model", choices=sorted(JOBS), required=True)
    args = parser.parse_args()
    trainer = SIDES[args.side](JOBS[args.model])

    def handle(command: control.Command) -> control.Reply:
        """{"describe"}, {"steps": n}, or {"bytes": b, "calls": n} for an allreduce."""
        if "describe" in command:
            parameters = list(trainer.model.parameters())
            return {
                "gpu": torch.cuda.get_device_name(),
                "gpus": torch.cuda.device_count(),
                "nccl": ".".join(map(str, torch.cuda.nccl.version())),
                "parameters": sum(p.numel() for p in parameters),
                "batch": trainer.job.batch,
            }
        if "bytes" in command:
            tensor = torch.zeros(command["bytes"] // 4, device=trainer.device)
            seconds = seconds_of(command["calls"], lambda: trainer.reduce(tensor))
            return {"seconds": seconds / command["calls"]}
        steps = command["steps"]
        return {"images": steps * trainer.job.batch, "elapsed_s": seconds_of(steps, trainer.step)}

    control.serve(args, trainer.rank, handle)
    trainer.close()


if __name__ == "__main__":
    main()
