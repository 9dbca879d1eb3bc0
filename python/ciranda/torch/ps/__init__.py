"""Parameter servers: the modes of training with them, and what a worker can ask them.

`ciranda run -np 4 --ps 2 train.py` starts them; DistributedOptimizer(..., ps=ps.Async()) trains
with them. docs/parameter-server.md says which mode to choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ciranda import _C
from ciranda.torch.ps.checkpoints import load_checkpoint
from ciranda.torch.ps.embedding import Embedding
from ciranda.torch.ps.evaluator import evaluate, is_evaluator
from ciranda.torch.ps.layer import Layer
from ciranda.torch.ps.sandblaster import LbfgsResult, Sandblaster, lbfgs
from ciranda.torch.ps.tasks import (
    Future,
    Task,
    done,
    is_coordinator,
    join,
    per_worker,
    run,
    schedule,
    task,
)

UpdateOn = Literal["server", "worker"]

__all__ = [
    "EASGD",
    "SSP",
    "Async",
    "Downpour",
    "Embedding",
    "Future",
    "Layer",
    "LbfgsResult",
    "Mode",
    "Sandblaster",
    "Sync",
    "Task",
    "average",
    "done",
    "evaluate",
    "is_coordinator",
    "is_evaluator",
    "join",
    "lbfgs",
    "load_checkpoint",
    "per_worker",
    "run",
    "schedule",
    "stats",
    "task",
]


@dataclass(frozen=True)
class Async:
    """Servers apply each push at once, and no worker waits for another.

    ahead: with 1, step() returns before the servers have answered; the parameters are then those of
    the step before.
    policy: what servers do with a stale gradient. Its staleness is the number of pushes that were
    applied since the parameters that the gradient was computed from. "apply" uses the gradient as
    it is. "scale" multiplies it by 1 / max(1, staleness). "drop" drops it if its staleness is above
    max_staleness.

    update_on: "server" lets the servers make the optimizer's step. "worker" makes each worker step
    and push its changes, for optimizers that servers do not know.
    force: allows a momentum with which stale gradients usually diverge.

    Raises ValueError for other values, and unless policy="drop" and max_staleness come together.
    """

    ahead: int = 0
    max_staleness: int | None = None
    policy: Literal["apply", "scale", "drop"] = "apply"
    update_on: UpdateOn = "server"
    force: bool = False

    def __post_init__(self) -> None:
        _check_update_on("Async", self.update_on)
        if self.ahead and self.update_on == "worker":
            raise ValueError(
                "Async: with update_on='worker' a step begins where the one before ended; use "
                "Async(ahead=0)"
            )
        if self.ahead not in (0, 1):
            raise ValueError(f"Async: ahead must be 0 or 1, not {self.ahead!r}")
        if self.policy not in ("apply", "scale", "drop"):
            raise ValueError(
                f"Async: policy must be 'apply', 'scale' or 'drop', not {self.policy!r}"
            )
        if (self.policy == "drop") != (self.max_staleness is not None):
            raise ValueError(
                "Async: policy='drop' and max_staleness must be given together: gradients "
                "staler than max_staleness are dropped"
            )
        _check_count("Async: max_staleness", self.max_staleness or 0)

    def _native(self) -> Any:
        return _C.ServerMode(
            _C.ModeKind.async_,
            policy=getattr(_C.StalePolicy, self.policy),
            max_staleness=self.max_staleness,
        )


@dataclass(frozen=True)
class SSP:
    """Stale synchronous parallel, with bounded staleness.

    As Async, but a worker that is more than `staleness` steps ahead of the slowest worker waits in
    step(). With 0 all workers make the same step. update_on and force are those of Async.
    """

    staleness: int
    update_on: UpdateOn = "server"
    force: bool = False

    def __post_init__(self) -> None:
        _check_update_on("SSP", self.update_on)
        _check_count("SSP: staleness", self.staleness)

    def _native(self) -> Any:
        return _C.ServerMode(_C.ModeKind.ssp, staleness=self.staleness)


@dataclass(frozen=True)
class Sync:
    """Workers push in rounds: each step uses the mean of the workers' gradients, as in a ring.

    backup_workers: a round ends when all but this many workers have pushed; later pushes of that
    round are dropped. update_on and force: as in Async.
    """

    backup_workers: int = 0
    update_on: UpdateOn = "server"
    force: bool = False

    def __post_init__(self) -> None:
        _check_update_on("Sync", self.update_on)
        _check_count("Sync: backup_workers", self.backup_workers)

    def _native(self) -> Any:
        return _C.ServerMode(_C.ModeKind.sync, backup_workers=self.backup_workers)


@dataclass(frozen=True)
class Downpour:
    """Downpour SGD (Dean et al. 2012): as Async, but workers push and fetch less often.

    A worker pushes the sum of n_push steps' gradients, and fetches the newest parameters every
    n_fetch steps. Between fetches it steps by plain SGD itself, with the optimizer's learning rate.
    The servers run the optimizer; the paper used Adagrad. broadcast_parameters() pushes the
    remaining gradients and fetches. force: as in Async.
    """

    n_push: int = 1
    n_fetch: int = 1
    force: bool = False

    def __post_init__(self) -> None:
        for name in ("n_push", "n_fetch"):
            value = getattr(self, name)
            _check_count(f"Downpour: {name}", value)
            if value < 1:
                raise ValueError(f"Downpour: {name} must be at least 1, not {value!r}")

    def _native(self) -> Any:
        return _C.ServerMode(_C.ModeKind.async_)


@dataclass(frozen=True)
class EASGD:
    """Elastic averaging (Zhang, Choromanska and LeCun 2015): each worker has its own parameters.

    It trains them with any optimizer. Every `period` steps its parameters and the servers' move
    towards each other, by their difference times rho times the learning rate. step() raises
    ValueError if rho times the learning rate is above 1; in the paper it is 0.9 divided by the
    number of workers.

    The servers' parameters are the result; broadcast_parameters() fetches them, to test or to save.
    """

    rho: float
    period: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.rho, bool) or not isinstance(self.rho, int | float) or not self.rho > 0:
            raise ValueError(f"EASGD: rho must be more than 0, not {self.rho!r}")
        _check_count("EASGD: period", self.period)
        if self.period < 1:
            raise ValueError(f"EASGD: period must be at least 1, not {self.period!r}")

    def _native(self) -> Any:
        return _C.ServerMode(_C.ModeKind.async_)


Mode = Async | SSP | Sync | Downpour | EASGD


def _check_update_on(mode: str, value: Any) -> None:
    if value not in ("server", "worker"):
        raise ValueError(f"{mode}: update_on must be 'server' or 'worker', not {value!r}")


def _check_count(what: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ValueError(f"{what} must be a whole number of at least 0, not {value!r}")


def average(value: float, name: str = "value") -> float:
    """Returns the mean of the latest values that workers have passed under this name.

    `value` is this worker's. It waits for no other worker: a worker that has not called it yet does
    not count. Use it for metrics, instead of allreduce(). Blocks for one answer of server 0.
    """
    return _C.server_average(float(value), name)


def stats() -> dict[str, Any]:
    """Returns counters since init(): `worker` of this worker, `servers` with a row for each server.

    worker: `pushes` by outcome, `pulls`, `pushed_bytes`, `waiting_s` for answers, and
    `waiting_for_workers_s`, the part of it in which servers held an answer back for other workers.
    server: `version`, `pushes` by outcome, `pulls`, `staleness` (number of pushes of staleness 0,
    1, 2, 3, 4 to 7, 8 to 15, …), `gradient_bytes` read, `parameter_bytes` written to workers,
    `held_bytes`, `busy_s`, `longest_in_queue_s`, `lost_pushes` (answered, and lost when the server
    was killed) and `workers`, a row for each with `here`, `pushes`, `waiting_for_workers_s`.

    Blocks for the servers' answers.
    """
    return _C.server_stats()
