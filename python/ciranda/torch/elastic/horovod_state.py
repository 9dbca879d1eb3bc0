"""Horovod's base classes of states: what a function under elastic.run() keeps and gets back."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ciranda import _C
from ciranda.errors import HostsUpdatedInterrupt, UnsupportedError
from ciranda.torch.elastic.orders import any_is_called
from ciranda.torch.elastic.progress import Progress
from ciranda.torch.functions import broadcast_object


class State:
    """What a training changes. A subclass says how it is saved, restored and synchronized.

    The arguments are Horovod's: functions that broadcast an object from rank 0, and return the
    rank. Not thread-safe.
    """

    progress: Progress
    holds: bool  # the state is that of the job, not what this process began with
    calls_begun = 0  # of functions under elastic.run(), in this process

    def __init__(
        self,
        bcast_object: Callable[..., Any] = broadcast_object,
        get_rank: Callable[[], int] = _C.rank,
    ) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: list[Callable[[], None]] = []
        self.progress = Progress()
        self.holds = False

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Registers functions that elastic.run() calls when the ranks have changed.

        Only ranks that were there before call them. The state is synchronized afterwards, so a
        rank that joins gets what they have changed in it, for example the learning rate.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Saves the state, then does what check_host_updates() does.

        The work since the last commit is what the loss of a rank costs.
        """
        self.save()
        self.progress.blocks += 1
        self.progress.moment += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on every rank if ranks join, for elastic.run() to answer.

        In an elastic job it is a collective of a byte. Otherwise it does nothing.
        """
        if any_is_called():
            raise HostsUpdatedInterrupt(skip_sync=False)

    def save(self) -> None:
        """Keeps a copy of the state for restore()."""
        raise NotImplementedError

    def restore(self) -> None:
        """Puts back what save() has kept."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives every rank the state of rank 0. Collective.

        With an argument root_rank it gives the state of that rank: in an elastic job rank 0 may be
        the one that has joined.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Does what rank() and size() call for when they have changed, before sync()."""

    # What belongs to this module and its neighbours

    def optimizers(self) -> list[Any]:
        return []

    def resize(self, size: int) -> None:
        """Notes the number of ranks before a block or agreed()."""
        self.progress.size = size

    def end_call(self) -> None:
        """Notes the state at the end of a loop or an agreement, which newcomers skip."""

    def skip_last_call(self) -> None:
        """A newcomer has skipped the last call that the others have ended."""

    def arrive(self) -> None:
        """A newcomer is where the others were when it got their state."""

    def redo_from_commits(self) -> None:
        """Says that elastic.run() uses the state: ranks recover by whole states."""

    def transfer(self, plan: Any, rank: int) -> None:
        """Gives every rank the state of rank plan.source. Collective, blocking."""
        sync_from(self, plan.source)
        told = broadcast_object(vars(self.progress), plan.source, "elastic.progress")
        self.progress = Progress(**told)


class ObjectState(State):
    """A state of plain values, which become attributes: ObjectState(epoch=0).epoch."""

    def __init__(
        self,
        bcast_object: Callable[..., Any] = broadcast_object,
        get_rank: Callable[[], int] = _C.rank,
        **values: Any,
    ) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state = values
        self.restore()

    def save(self) -> None:
        names = self._saved_state
        self._saved_state = {name: copy.deepcopy(getattr(self, name)) for name in names}

    def restore(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))

    def sync(self, root_rank: int = 0) -> None:
        if not self._saved_state:
            return
        self.save()
        self._saved_state = self._bcast_object(self._saved_state, root_rank)
        self.restore()


def sync_from(one: Any, root_rank: int) -> None:
    """Calls one.sync(), of a State or StateHandler, so that all ranks get that of root_rank."""
    if inspect.signature(one.sync).parameters:
        one.sync(root_rank)
    elif root_rank == 0:
        one.sync()
    else:
        raise UnsupportedError(
            f"elastic: rank 0 has just joined, and {type(one).__name__}.sync() would give its "
            "state to all; write sync(self, root_rank=0), which broadcasts from root_rank"
        )
