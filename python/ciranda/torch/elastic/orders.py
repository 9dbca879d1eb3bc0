"""Orders of the launcher: whether this process is called to other ranks."""

from __future__ import annotations

import torch

from ciranda import _C
from ciranda.errors import CirandaError
from ciranda.torch.ops import Max, allreduce

WAIT_MS = 200  # between two looks for signals
_SILENCE_MAX = 5 * 900  # of those: the launcher gives up earlier, and ends this process


def look() -> tuple[bool, bool]:
    """Returns whether this process is called, and whether it is released.

    It is called if the launcher has named other ranks, whose World it joins. It is released if it
    may leave: its host leaves the job, or the training is over.
    """
    if not _C.in_elastic_job():
        return False, False
    order = _C.newest_order()
    return order.epoch > _C.own_epoch(), order.over


def is_called() -> bool:
    return look()[0]


def wait_for_call() -> None:
    """Blocks until this process is called or released."""
    for _ in range(_SILENCE_MAX):
        if any(look()):
            return
        _C.wait_for_order(WAIT_MS)
    raise CirandaError(
        "elastic: a rank was lost, and the launcher has not named the ranks that go on; its "
        "output says what it waits for"
    )


def any_is_called() -> bool:
    """Returns on every rank whether a rank is called or released. Collective in an elastic job.

    Ranks hear of an order at different times, but must leave their World at the same point. If one
    is called or released, all return as soon as they are.
    """
    if not _C.in_elastic_job():
        return False
    called = torch.tensor([any(look())], dtype=torch.uint8, device="cpu")
    if _C.size() > 1:
        called = allreduce(called, op=Max, name="elastic.called")
    if not called.item():
        return False
    wait_for_call()
    return True
