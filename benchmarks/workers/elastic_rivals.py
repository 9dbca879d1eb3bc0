"""One training for several systems, whose ranks are killed all the while.

    ciranda run -np 2 --min-np 2 --spares 1 elastic_rivals.py --side ciranda
    torchrun --nproc-per-node 2 --max-restarts 1000 elastic_rivals.py --side torchrun

It trains until there is a file `stop`, ends its pass and writes result.json. Each process appends
to log-PID lines of JSON: ["dealt", step, attempt, pass, samples, time] before a step, and ["made",
step, attempt, pass, time] after it. The samples of an attempt count if a rank has made it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, WIDTH, CLASSES, BATCH = 8192, 784, 10, 64
NOISE = 11.0  # so that a good model is right 9 times of 10
CHECKPOINT_STEPS = 50


def make_model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, 512),
        torch.nn.ReLU(),
        torch.nn.Linear(512, CLASSES),
    )


def make_samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    centers = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (count,), generator=generator)
    return centers[y] + NOISE * torch.randn(count, WIDTH, generator=generator), y


def accuracy(model: torch.nn.Module) -> float:
    x, y = make_samples(2048, 2)
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


class Log:
    def __init__(self) -> None:
        self._log = os.open(f"log-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *what: Any) -> None:
        os.write(self._log, (json.dumps([*what, time.monotonic_ns()]) + "\n").encode())


def write_result(model: torch.nn.Module, passes: int, steps: int) -> None:
    result = {"accuracy": accuracy(model), "passes": passes, "steps": steps}
    Path("result.next").write_text(json.dumps(result))
    os.rename("result.next", "result.json")


def train_step(model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def through_ciranda(data: TensorDataset) -> None:
    import ciranda.torch as cr
    from ciranda import _C
    from ciranda.torch import elastic

    cr.init()
    model = make_model()
    optimizer = cr.DistributedOptimizer(
        torch.optim.Adam(model.parameters()), model.named_parameters()
    )
    loader = DataLoader(data, BATCH, shuffle=True)
    state = elastic.TorchState(model, optimizer)
    log, passes = Log(), 0

    def stops() -> bool:
        told = torch.tensor([float(os.path.exists("stop"))])
        return bool(cr.allreduce(told, op=cr.Max, name="stop").item())

    while not elastic.agreed(stops):
        for step in elastic.steps(loader, state):
            with step as (ids, x, y):
                attempt = _C.own_epoch()
                log.note("dealt", step.number, attempt, passes, ids.tolist())
                train_step(model, optimizer, x, y)
            if step.done:
                log.note("made", step.number, attempt, passes)
        passes += 1
    if cr.rank() == 0:
        write_result(model, passes, state.step)


def sampler_of(data: TensorDataset, number: int, rank: int, size: int) -> Any:
    """This rank's samples of a pass, the same in each life."""
    sampler = torch.utils.data.DistributedSampler(data, size, rank, shuffle=True)
    sampler.set_epoch(number)
    return sampler


def through_torchrun(data: TensorDataset) -> None:
    """All ranks begin again with the last checkpoint when one is lost."""
    from torch import distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    passes, made, steps = 0, 0, 0
    checkpoint = Path("checkpoint.pt")
    if checkpoint.exists():
        kept = torch.load(checkpoint)
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        passes, made, steps = kept["passes"], kept["made"], kept["steps"]
    wrapped, log = DistributedDataParallel(model), Log()

    def save() -> None:
        if rank == 0:
            kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**kept, "passes": passes, "made": made, "steps": steps}, "checkpoint.next")
            os.rename("checkpoint.next", checkpoint)

    def stops() -> bool:
        told = torch.tensor([float(os.path.exists("stop"))])
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return bool(told.item())

    while not stops():
        batches = DataLoader(data, BATCH, sampler=sampler_of(data, passes, rank, size))
        for ids, x, y in itertools.islice(batches, made, None):
            log.note("dealt", steps, 0, passes, ids.tolist())  # each attempt has the same
            train_step(wrapped, optimizer, x, y)
            log.note("made", steps, 0, passes)
            made, steps = made + 1, steps + 1
            if steps % CHECKPOINT_STEPS == 0:
                save()
        passes, made = passes + 1, 0
    if rank == 0:
        write_result(model, passes, steps)
    dist.destroy_process_group()


def through_torchft(data: TensorDataset) -> None:
    """Each rank is a replica group of its own; whoever starts it starts it again."""
    from datetime import timedelta

    import torchft
    from torch import distributed as dist

    place, size = int(os.environ["PLACE"]), int(os.environ["PLACES"])
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())

    def load(kept: dict[str, Any]) -> None:
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])

    def keep() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=keep,
        min_replica_size=1,
        use_async_quorum=False,  # a rank that joins knows its step before its samples
        replica_id=f"place_{place}",
        timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
    )
    managed = torchft.Optimizer(manager, optimizer)  # begins and commits a step
    log = Log()
    x, y = data.tensors[1:]
    in_pass = SAMPLES // size // BATCH
    while True:
        managed.zero_grad()  # learns who takes part, and at which step they are
        step = manager.current_step()
        number, place_in_pass = divmod(step, in_pass)
        if place_in_pass == 0 and step > 0 and os.path.exists("stop"):
            break
        order = torch.tensor(list(sampler_of(data, number, place, size)))
        ids = order[place_in_pass * BATCH :][:BATCH]
        log.note("dealt", step, place, number, ids.tolist())
        torch.nn.functional.cross_entropy(model(x[ids]), y[ids]).backward()
        # Its DistributedDataParallel ends all ranks with an assertion when one is lost.
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        for work in [manager.allreduce(each) for each in gradients]:
            work.wait()
        managed.step()
        if manager.current_step() > step:
            log.note("made", step, place, number)
    write_result(model, number, step)
    manager.shutdown()


SIDES: dict[str, Callable[[TensorDataset], None]] = {
    "ciranda": through_ciranda,
    "torchrun": through_torchrun,
    "torchft": through_torchft,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=SIDES, required=True)
    args = parser.parse_args()
    x, y = make_samples(SAMPLES, 1)
    SIDES[args.side](TensorDataset(torch.arange(SAMPLES), x, y))


if __name__ == "__main__":
    main()
