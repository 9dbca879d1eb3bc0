"""The learning rate of many ranks: linear scaling, and the warm-up before it.

A step of N ranks is one with the mean gradient of a batch N times as large, so it may be N times
as long: the linear scaling rule of Goyal et al., "Accurate, Large Minibatch SGD" (2017), section
2.1. It does not hold while the network changes fast, so they go from one rank's rate to that of all
in equal increments over the first five epochs (2.2), a step at a time.
"""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, SequentialLR

from ciranda import _C

__all__ = ["scaled_lr", "warmup"]


def scaled_lr(lr: float, size: int | None = None) -> float:
    """`lr * size`: the rate of all ranks from the one that suits one rank with its own batch.

    `size`: by default size(); process_set.size() where a set trains. Not for op=Sum, whose gradient
    is that many times as large already, nor for ps.Async and ps.SSP, which step with one rank's.
    """
    return lr * _ranks(size)


def warmup(
    optimizer: Optimizer,
    steps: int,
    after: LRScheduler | None = None,
    start: float | None = None,
) -> LRScheduler:
    """A scheduler that brings each group from `start` times its rate to its rate in `steps` steps.

    After n steps the rate is lr * (start + (1 - start) * min(n, steps) / steps), lr being what the
    optimizer was made with, usually scaled_lr(). `start`: by default 1 / size(), one rank's rate.

    Call its step() after each optimizer.step(). It is torch's own: LinearLR, or with `after`, a
    scheduler of the same optimizer that takes over after `steps` steps and counts steps too,
    SequentialLR. A scheduler that counts epochs is not passed, but stepped beside this one.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"warmup: steps must be a whole number of at least 1, not {steps!r}")
    if start is None:
        start = 1 / _ranks(None)
    if not 0 < start <= 1:
        raise ValueError(f"warmup: start must be above 0 and at most 1, not {start!r}")
    rise = LinearLR(optimizer, start_factor=start, total_iters=steps)
    return rise if after is None else SequentialLR(optimizer, [rise, after], milestones=[steps])


def _ranks(size: int | None) -> int:
    if size is None:
        return _C.size()
    if size < 1:
        raise ValueError(f"scaled_lr: size must be at least 1, not {size!r}")
    return size
