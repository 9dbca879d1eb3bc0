"""Learning rates for many ranks: linear scaling, and the warm-up before it.

A step of N ranks uses the mean gradient of a batch N times as large, so it may be N times as long:
this is the linear scaling rule of Goyal et al., "Accurate, Large Minibatch SGD" (2017), section
2.1. The rule does not hold while the network changes fast. They therefore go from one rank's rate
to the scaled rate in equal increments over the first five epochs (2.2), one increment a step.
"""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, SequentialLR

from ciranda import _C

__all__ = ["scaled_lr", "warmup"]


def scaled_lr(lr: float, size: int | None = None) -> float:
    """Returns `lr * size`: the rate for all ranks, where `lr` suits one rank with its own batch.

    `size`: by default size(); pass process_set.size() if a process set trains. Do not scale with
    op=Sum: its gradient is already that many times as large. Do not scale with ps.Async or ps.SSP:
    they step with one rank's gradient. Raises ValueError for a size below 1.
    """
    return lr * _ranks(size)


def warmup(
    optimizer: Optimizer,
    steps: int,
    after: LRScheduler | None = None,
    start: float | None = None,
) -> LRScheduler:
    """Returns a scheduler that raises each group's rate from the fraction `start` to the whole.

    After n steps the rate is lr * (start + (1 - start) * min(n, steps) / steps), where lr is the
    rate that the optimizer was made with, usually scaled_lr(). `start`: by default 1 / size(), one
    rank's rate.

    Call its step() after each optimizer.step(). It is torch's LinearLR. With `after`, a scheduler
    of the same optimizer that also counts steps, it is torch's SequentialLR, and `after` takes over
    after `steps` steps. Do not pass a scheduler that counts epochs; step it beside this one. Raises
    ValueError unless `steps` is a whole number of at least 1 and 0 < start <= 1.
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
