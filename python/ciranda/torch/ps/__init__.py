"""Parameter servers: how a worker's pushes take effect, and what there is to ask of servers.

`ciranda run -np 4 --ps 2 train.py` starts them; DistributedOptimizer(..., backend="ps",
mode=ps.Async()) trains with them. docs/parameter-server.md says which mode to choose.
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
    """Each push takes effect at once, and no worker waits for another.

    ahead: 1 lets step() return before the servers have answered; the parameters are then those of
    the step before. policy: what happens to a gradient by its staleness, the pushes of others since
    the parameters that it was made from: "apply" it as it is, "scale" it by 1 / max(1, staleness),
    or "drop" it where the staleness is above max_staleness.
    """

    ahead: int = 0
    max_staleness: int | None = None
    policy: Literal["apply", "scale", "drop"] = "apply"

    def __post_init__(self) -> None:
        if self.ahead not in (0, 1):
            raise ValueError(f"Async: ahead must be 0 or 1, not {self.ahead!r}")
        if self.policy not in ("apply", "scale", "drop"):
            raise ValueError(
                f"Async: policy must be 'apply', 'scale' or 'drop', not {self.policy!r}"
            )
        if (self.policy == "drop") != (self.max_staleness is not None):
            raise ValueError(
                "Async: policy='drop' and max_staleness need each other: gradients above it are "
                "dropped"
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
    """Bounded staleness (stale synchronous parallel): as Async, but a worker that is more than
    `staleness` steps ahead of the slowest waits in step(). 0: all make the same step."""

    staleness: int

    def __post_init__(self) -> None:
        _check_count("SSP: staleness", self.staleness)

    def _native(self) -> Any:
        return _C.ServerMode(_C.ModeKind.ssp, staleness=self.staleness)


@dataclass(frozen=True)
class Sync:
    """Rounds: each step is made with the mean of the workers' gradients, as in a ring.

    backup_workers: a round waits for so many workers less, and drops what they push too late.
    """

    backup_workers: int = 0

    def __post_init__(self) -> None:
        _check_count("Sync: backup_workers", self.backup_workers)

    def _native(self) -> Any:
        return _C.ServerMode(_C.ModeKind.sync, backup_workers=self.backup_workers)


@dataclass(frozen=True)
class Downpour:
    """Downpour SGD (Dean et al. 2012): as Async, but the gradients of n_push steps are pushed as
    one and the newest parameters are fetched after n_fetch; between, each worker makes steps of
    plain SGD of its own, with the optimizer's learning rate.

    The servers run the optimizer: Adagrad is what it was published with. broadcast_parameters()
    pushes what is left, and fetches.
    """

    n_push: int = 1
    n_fetch: int = 1

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
    """Elastic averaging (Zhang, Choromanska and LeCun 2015): each worker trains parameters of its
    own with any optimizer; after `period` steps they and the servers' come nearer to each other, by
    rho times the learning rate of what they differ by. That product is at most 1; the paper's is
    0.9 divided by the number of workers.

    The servers' are the result: broadcast_parameters() takes them, to test or to save.
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


def _check_count(what: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 31:
        raise ValueError(f"{what} must be a whole number of at least 0, not {value!r}")


def average(value: float, name: str = "value") -> float:
    """The mean of the latest values that workers have given under this name, this one included.

    Waits for no other worker: one that has not called it yet does not count. For a metric, where a
    ring would use allreduce(). Blocks for one answer of server 0.
    """
    return _C.server_average(float(value), name)


def stats() -> dict[str, Any]:
    """What was done since init(): `worker`, of this one, and `servers`, one row each.

    worker: `pushes` by outcome, `pulls`, `pushed_bytes`, `waiting_s` for answers, and
    `waiting_for_workers_s`, the part in which servers held an answer back for other workers.
    server: `version`, `pushes` by outcome, `pulls`, `staleness` (pushes by theirs: 0, 1, 2, 3, 4
    to 7, 8 to 15, …), `gradient_bytes` read, `parameter_bytes` written to workers, `held_bytes`,
    `busy_s`, `longest_in_queue_s`, `lost_pushes` (that it had answered before it was killed, and
    has not any more) and `workers`: `here`, `pushes`, `waiting_for_workers_s`.
    Blocks for the servers' answers.
    """
    return _C.server_stats()
