"""Trains in an elastic loop until it is told to end, and dies where it is told to.

It appends lines of JSON to log-PID: what it was dealt, and which step counted (see Program). The
file `order` holds [point, who] pairs: the first process that is this rank, or has this part in a
recovery, and comes to this point, dies there. The file `stop` ends the training after a pass.
Final parameters lie in result-PID.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, WIDTH, BATCH = 1024, 16, 8
CLIP = 0.05
SHARED = "host"


class Kind(NamedTuple):
    """What the training uses."""

    optimizers: int = 1
    passes: int = 1  # of a step
    clips: bool = False
    shared_step: str | bool = "auto"

    @property
    def hidden(self) -> int:
        return 2048 if self.shared_step == SHARED else 32  # so that all ranks share the step


KINDS = {
    "plain": Kind(),
    "clipping": Kind(clips=True),
    "accumulation": Kind(passes=2),
    "two optimizers": Kind(optimizers=2),
    "no shared step": Kind(shared_step=False),
    "shared step": Kind(shared_step=SHARED),
    "shared step, clipping": Kind(clips=True, shared_step=SHARED),
    "shared step, accumulation": Kind(passes=2, shared_step=SHARED),
    "shared step, two optimizers": Kind(optimizers=2, shared_step=SHARED),
}


def make_nets(kind: Kind) -> list[torch.nn.Module]:
    torch.manual_seed(1)
    return [
        torch.nn.Sequential(
            torch.nn.Linear(WIDTH, kind.hidden), torch.nn.Tanh(), torch.nn.Linear(kind.hidden, 1)
        ).double()
        for _ in range(kind.optimizers)
    ]


def make_samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
    teacher = torch.randn(WIDTH, 1, generator=generator, dtype=torch.float64)
    return x, torch.sin(x @ teacher)


def losses(
    nets: list[torch.nn.Module], x: torch.Tensor, y: torch.Tensor, kind: Kind
) -> list[torch.Tensor]:
    """The loss of each backward pass of a step."""
    parts = (x.tensor_split(kind.passes), y.tensor_split(kind.passes))
    return [
        ((sum(net(a) for net in nets) - b) ** 2).sum() / len(x) for a, b in zip(*parts, strict=True)
    ]


class Program:
    """One process of the job."""

    def __init__(self, epoch: Callable[[], int]) -> None:
        self._epoch = epoch
        self._log = os.open(f"log-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, *what: Any) -> None:
        os.write(self._log, (json.dumps([*what, time.monotonic_ns()]) + "\n").encode())

    def die(self, point: str, who: str | int) -> None:
        """Dies if the order says so."""
        try:
            order = json.loads(Path("order").read_text())
        except (FileNotFoundError, ValueError):  # ValueError: it is being written
            return
        if order[0] != [point, who]:
            return
        try:
            os.rename("order", f"taken-{os.getpid()}")
        except FileNotFoundError:  # another one has taken it
            return
        if order[1:]:
            Path("next").write_text(json.dumps(order[1:]))
            os.rename("next", "order")
        self.note("killed", self._epoch())
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--passes", type=int, default=0, help="as many; 0: until `stop`")
    parser.add_argument("--computing-s", type=float, default=0.0, help="in each step, asleep")
    args = parser.parse_args()

    import ciranda.torch as cr
    from ciranda import _C
    from ciranda.torch import elastic
    from ciranda.torch.elastic import state as states

    kind = KINDS[args.kind]
    program = Program(_C.own_epoch)
    die = program.die
    part = ["other"]  # in a recovery

    class State(elastic.TorchState):
        """Dies as ranks meet anew."""

        def transfer(self, plan: Any, rank: int) -> None:
            part[0] = "other"
            if rank == plan.source:
                part[0] = "source"
            elif rank in plan.newcomers:
                part[0] = "newcomer"
            die("meeting", part[0])
            super().transfer(plan, rank)
            die("transferred", part[0])

    broadcast_structure = states.broadcast_object

    def broadcast_object(*given: Any, **named: Any) -> Any:
        whole = broadcast_structure(*given, **named)
        die("transfer", part[0])  # the tensors follow
        return whole

    states.broadcast_object = broadcast_object

    cr.init()
    nets = make_nets(kind)
    optimizers = [
        cr.DistributedOptimizer(
            torch.optim.Adam(net.parameters()),
            [(f"{number}.{name}", each) for name, each in net.named_parameters()],
            backward_passes_per_step=kind.passes,
            max_grad_norm=CLIP if kind.clips else None,
            shared_step=kind.shared_step,
        )
        for number, net in enumerate(nets)
    ]
    x, y = make_samples()
    loader = DataLoader(TensorDataset(torch.arange(SAMPLES), x, y), BATCH, shuffle=True)
    state = State(*nets, *optimizers)
    next(nets[0].parameters()).register_hook(lambda _: die("hook", cr.rank()))

    def counts() -> list[int]:
        """How many steps each optimizer has made, by its own count."""
        found = []
        for optimizer in optimizers:
            # A read of optimizer.state would end the shared step.
            states = optimizer.state_dict()["state"].values()
            (count,) = {int(each["step"]) for each in states}
            found.append(count)
        return found

    passes = 0

    def is_over() -> bool:
        die("agreed", cr.rank())
        stops = passes == args.passes if args.passes else os.path.exists("stop")
        return bool(cr.allreduce(torch.tensor([float(stops)]), op=cr.Max, name="stop").item())

    def one_pass() -> None:
        for step in elastic.steps(loader, state):
            rank = cr.rank()
            with step as (ids, a, b):
                epoch = _C.own_epoch()
                program.note("dealt", step.number, epoch, rank, cr.size(), ids.tolist())
                die("block", rank)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                time.sleep(args.computing_s)
                for loss in losses(nets, a, b, kind):
                    die("forward", rank)
                    loss.backward()
                die("before the step", rank)
                for number, optimizer in enumerate(optimizers):
                    if number:
                        die("between two steps", rank)
                    optimizer.step()
                die("after the step", rank)
            if step.done:
                program.note("counted", step.number, epoch, counts())
            die("after the block", rank)

    program.note("ready")
    while not elastic.agreed(is_over):
        one_pass()
        passes += 1
    die("end", cr.rank())
    if kind.shared_step == SHARED and cr.size() > 1:
        assert [each.why_not_shared() for each in optimizers] == [""] * len(optimizers)
    parameters = [each.detach() for net in nets for each in net.parameters()]
    digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in parameters)).hexdigest()
    torch.save(parameters, f"parameters-{os.getpid()}")
    result = {"rank": cr.rank(), "passes": passes, "steps": state.step, "digest": digest}
    Path(f"result-{os.getpid()}").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
