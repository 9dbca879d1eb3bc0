"""Orders of the launcher: whether this process is called to other ranks."""

from __future__ import annotations

import torch

from ciranda import _C
from ciranda.errors import CirandaError
from ciranda.torch.ops import Max, allreduce

WAIT_MS = 200  # between two looks for signals
_SILENCE_MAX = 5 * 900  # of those: the launcher gives up earlier, and ends this process


def is_called() -> bool:
    """Returns True if the launcher has named other ranks, whose World this process joins."""
    return _C.in_elastic_job() and _C.newest_order().epoch > _C.own_epoch()


def wait_for_call() -> None:
    """Blocks until is_called()."""
    for _ in range(_SILENCE_MAX):
        if is_called():
            return
        _C.wait_for_order(WAIT_MS)
    raise CirandaError(
        "elastic: a rank was lost, and the launcher has not named the ranks that go on; its "
        "output says what it waits for"
    )


def any_is_called() -> bool:
    """Returns on every rank whether a rank is called. Collective in an elastic job.

    Ranks hear of an order at different times, but must leave their World at the same point. If one
    is called, all return as soon as they are.
    """
    if not _C.in_elastic_job():
        return False
    called = torch.tensor([is_called()], dtype=torch.uint8, device="cpu")
    if _C.size() > 1:
        called = allreduce(called, op=Max, name="elastic.called")
    if not called.item():
        return False
    wait_for_call()
    return True
