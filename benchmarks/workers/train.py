"""Training steps on synthetic data, one of several ways.

one       a single process
alone     two processes at the same time that do not talk: the true limit
lockstep  the same, but each step has a barrier in shared memory: the limit of every method that
          averages gradients and then steps, were its communication free
ddp       DistributedDataParallel over Gloo, with settings the harness searches
zero      the same with ZeroRedundancyOptimizer: each rank keeps and updates a part of the state
ciranda   DistributedOptimizer; repeated: every rank steps alone; host: reduced in the shared step
ps        DistributedOptimizer on parameter servers: async, ahead (async, and step() does not wait
          for its answer), ssp (2 steps ahead at most) or sync
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import control
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ciranda.compare.models import small_cnn

CLASSES = 10
# Small enough that no unit dies and no number becomes denormal over a thousand steps: the work of
# a step must not depend on how many there were before it.
LEARNING_RATE = 1e-6
SEED = 7


class Job(NamedTuple):
    make: Callable[[], nn.Module]
    batch: int
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    optimizer: str = "adam"


class Bare(nn.Module):
    """Parameters and nothing else."""

    def __init__(self, sizes: Iterable[int]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(size) for size in sizes)

    def forward(self, _: Tensor) -> Tensor:
        return torch.cat(list(self.weights))


def make_many_small() -> nn.Module:
    """As many parameters as `deep` has: what is left is the cost of each."""
    return Bare([64] * 404)


def make_lopsided() -> nn.Module:
    return Bare([2**24, *[64] * 404])


def make_256_mib() -> nn.Module:
    return Bare([2**24] * 4)


def make_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(784, 512), nn.ReLU()),
        *(nn.Linear(512, 512), nn.ReLU()),
        nn.Linear(512, CLASSES),
    )


def make_deep() -> nn.Module:
    """201 layers of 64 and a head: 404 parameters."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(784, 64), nn.ReLU()]
    for _ in range(200):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(64, CLASSES))
    for layer in model:
        # With PyTorch's initial weights gradients fade to denormals on their way through 200
        # layers, and the processor's slow path for those would be what is measured.
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return model


def make_wide() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        *(nn.Linear(784, 4096), nn.ReLU()),
        *(nn.Linear(4096, 4096), nn.ReLU()),
        *(nn.Linear(4096, 4096), nn.ReLU()),
        nn.Linear(4096, CLASSES),
    )


def classify(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images), labels)


def sum_of_squares(model: nn.Module, images: Tensor, _: Tensor) -> Tensor:
    output: Tensor = model(images)
    return output.square().sum()


Parameters = Iterable[nn.Parameter]
OPTIMIZERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=LEARNING_RATE, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=LEARNING_RATE, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=LEARNING_RATE, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=LEARNING_RATE, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=LEARNING_RATE),  # torch has no fused one
}


JOBS = {
    "mlp": Job(make_mlp, 64, classify),
    "deep": Job(make_deep, 32, classify),
    "small": Job(small_cnn, 128, classify),
    "wide": Job(make_wide, 4, classify),
    "many_small": Job(make_many_small, 1, sum_of_squares),
    "lopsided": Job(make_lopsided, 1, sum_of_squares),
    "256_mib": Job(make_256_mib, 1, sum_of_squares),
}


class Trainer:
    """A model, its optimizer and a batch. Sides differ in __init__ and configure, not in step."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job = job
        torch.manual_seed(SEED)
        self.bare_model = job.make()
        self.model = self.bare_model
        self.optimizer = self.make_optimizer()
        torch.manual_seed(SEED + 1 + rank)
        self.images = torch.randn(job.batch, 1, 28, 28)
        self.labels = torch.randint(CLASSES, (job.batch,))
        self.slowness = 1.0

    def make_optimizer(self) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.job.optimizer](self.bare_model.parameters())

    def configure(self, settings: dict[str, Any]) -> None:
        if settings:
            raise ValueError(f"this side has no settings, not {settings}")

    def step(self) -> None:
        begin = time.thread_time()
        self.optimizer.zero_grad()
        self.job.loss(self.model, self.images, self.labels).backward()
        computed = time.thread_time() - begin
        self.optimizer.step()
        if self.slowness > 1.0:
            time.sleep((self.slowness - 1.0) * computed)

    def close(self) -> None:
        pass


class CirandaTrainer(Trainer):
    def __init__(self, job: Job, shared_step: Any = "auto") -> None:
        import ciranda.torch as hvd

        self.hvd = hvd
        hvd.init()
        super().__init__(job, hvd.rank())
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer,
            named_parameters=self.model.named_parameters(),
            shared_step=shared_step,
        )

    def close(self) -> None:
        self.hvd.shutdown()


class ServedTrainer(Trainer):
    def __init__(self, job: Job, mode: str) -> None:
        import ciranda.torch as hvd

        self.hvd = hvd
        hvd.init()
        self.idle_bytes = server_memory()
        super().__init__(job, hvd.rank())
        modes = {
            "async": hvd.ps.Async(),
            "ahead": hvd.ps.Async(ahead=1),
            "ssp": hvd.ps.SSP(2),
            "sync": hvd.ps.Sync(),
        }
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer,
            named_parameters=self.model.named_parameters(),
            ps=modes[mode],
        )

    def servers(self) -> control.Reply:
        rows = self.hvd.ps.stats()["servers"]
        return {
            "held_bytes": [row["held_bytes"] for row in rows],
            "idle_bytes": self.idle_bytes,
            "private_bytes": server_memory(),
        }

    def close(self) -> None:
        self.hvd.shutdown()


class LockstepTrainer(Trainer):
    def __init__(self, job: Job) -> None:
        import ciranda.torch as hvd

        self.hvd = hvd
        hvd.init()
        super().__init__(job, hvd.rank())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.job.loss(self.model, self.images, self.labels).backward()
        self.hvd.barrier()
        self.optimizer.step()

    def close(self) -> None:
        self.hvd.shutdown()


class DdpTrainer(Trainer):
    def __init__(self, job: Job) -> None:
        import torch.distributed as dist

        self.dist = dist
        dist.init_process_group("gloo")
        super().__init__(job, dist.get_rank())
        self.group: Any = None
        self.configure({"bucket_cap_mb": 25, "interfaces": None})

    def configure(self, settings: dict[str, Any]) -> None:
        """Wraps anew; Gloo reads its interfaces whenever a group is made."""
        self.model = self.bare_model
        if self.group is not None:
            self.dist.destroy_process_group(self.group)
        os.environ.pop("GLOO_SOCKET_IFNAME", None)
        if settings["interfaces"]:
            os.environ["GLOO_SOCKET_IFNAME"] = settings["interfaces"]
        self.group = self.dist.new_group(backend="gloo")
        self.bare_model.zero_grad()  # views of the old buckets
        self.model = nn.parallel.DistributedDataParallel(
            self.bare_model,
            process_group=self.group,
            bucket_cap_mb=settings["bucket_cap_mb"],
            gradient_as_bucket_view=True,
        )
        self.optimizer = self.make_optimizer()

    def close(self) -> None:
        self.dist.destroy_process_group()


class ZeroTrainer(DdpTrainer):
    def make_optimizer(self) -> torch.optim.Optimizer:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(
            self.bare_model.parameters(),
            optimizer_class=torch.optim.Adam,
            parameters_as_bucket_view=True,
            lr=LEARNING_RATE,
            fused=True,
        )


SHARED_STEP = {"ciranda": "auto", "ciranda repeated": False, "ciranda host": "host"}
SERVED = {"ps async": "async", "ps ahead": "ahead", "ps ssp": "ssp", "ps sync": "sync"}


def make_trainer(side: str, job: Job) -> tuple[Trainer, int]:
    if side in (*SHARED_STEP, "lockstep"):
        ours = (
            LockstepTrainer(job) if side == "lockstep" else CirandaTrainer(job, SHARED_STEP[side])
        )
        return ours, ours.hvd.rank()
    if side in SERVED:
        served = ServedTrainer(job, SERVED[side])
        return served, served.hvd.rank()
    if side in ("ddp", "zero"):
        ddp = DdpTrainer(job) if side == "ddp" else ZeroTrainer(job)
        return ddp, ddp.dist.get_rank()
    rank = int(os.environ.get("RANK", "0"))
    return Trainer(job, rank), rank


def run_steps(trainer: Trainer, command: control.Command) -> control.Reply:
    """`steps` of them, or for processes that need not agree as many as fit in `seconds`."""
    clock = time.perf_counter
    step_s = []
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = last = clock()
    # Sides that talk must do equally many.
    while (
        len(step_s) < command["steps"] if "steps" in command else last - start < command["seconds"]
    ):
        trainer.step()
        now = clock()
        step_s.append(now - last)
        last = now
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "images": len(step_s) * trainer.job.batch,
        "elapsed_s": last - start,
        "step_s": step_s,
        "sleeps": after.ru_nvcsw - before.ru_nvcsw,
        "preemptions": after.ru_nivcsw - before.ru_nivcsw,
    }


def server_memory() -> list[int]:
    """What each server of this job has for itself: without the workers' memory, which it maps."""
    private = []
    for process in control.servers_of_this_job():
        lines = process.joinpath("status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        private.append(int(fields["RssAnon"].split()[0]) * 1024)
    return private


def memory() -> control.Reply:
    """Proportional set size: a page that two ranks map counts half for each. Not the libraries'."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    )
    kib = sum(int(fields[name].split()[0]) for name in ("Pss_Anon", "Pss_Shmem"))
    return {"pss_bytes": kib * 1024}


def main() -> None:
    parser = control.make_parser()
    parser.add_argument(
        "--side",
        choices=["one", "alone", "lockstep", "ddp", "zero", *SHARED_STEP, *SERVED],
        required=True,
    )
    parser.add_argument("--model", choices=sorted(JOBS), required=True)
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adam")
    args = parser.parse_args()
    torch.set_num_threads(1)
    trainer, rank = make_trainer(args.side, JOBS[args.model]._replace(optimizer=args.optimizer))

    def handle(command: control.Command) -> control.Reply:
        """{"describe"}, {"configure": {...}}, {"memory"}, {"servers"}, {"slow_down": factor}, or
        {"steps": n} / {"seconds": s}; with "rank" only that one, and the others sleep."""
        if command.get("rank", rank) != rank:
            return {}
        if "describe" in command:
            parameters = list(trainer.bare_model.parameters())
            return {
                "parameters": sum(p.numel() for p in parameters),
                "tensors": len(parameters),
                "batch": trainer.job.batch,
                "gradient_bytes": sum(p.numel() * p.element_size() for p in parameters),
            }
        if "configure" in command:
            trainer.configure(command["configure"])
            return {}
        if "slow_down" in command:
            trainer.slowness = command["slow_down"]
            return {}
        if "servers" in command:
            assert isinstance(trainer, ServedTrainer)
            return trainer.servers()
        return memory() if "memory" in command else run_steps(trainer, command)

    control.serve(args, rank, handle)
    trainer.close()


if __name__ == "__main__":
    main()
