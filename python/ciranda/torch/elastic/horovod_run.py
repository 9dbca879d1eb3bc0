"""Horovod's elastic loop: a function that is called again when ranks change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ciranda import _C
from ciranda.errors import HostsUpdatedInterrupt
from ciranda.torch.elastic import state as states
from ciranda.torch.elastic.horovod_state import State
from ciranda.torch.elastic.membership import is_loss, membership
from ciranda.torch.elastic.orders import look
from ciranda.torch.ops import barrier

R = TypeVar("R")


def run(func: Callable[..., R]) -> Callable[..., R]:
    """Makes func(state, ...) a training that goes on when ranks die or join. A decorator::

        @elastic.run
        def train(state):
            for state.epoch in range(state.epoch, 10):
                ...
                state.commit()

    Ranks begin with the state of rank 0. When a rank is lost, the others go back to the newest
    commit that one of them has made; when ranks join, nothing is lost. In both cases the ranks
    call the reset callbacks, get one state, and call func again. All ranks leave func together. A
    rank that joins after its end gets the result, if that is of plain values, and None otherwise;
    one that joins when the others' program is at its end leaves the program at once.

    Without an elastic job the ranks get the state of rank 0, and func is called.
    """

    @functools.wraps(func)
    def run_elastic(state: State, *args: Any, **kwargs: Any) -> R:
        call = _Call(state)
        call.begin()
        while not call.has_ended():
            state.arrive()
            try:
                call.end(func(state, *args, **kwargs))
            except HostsUpdatedInterrupt:
                call.change_ranks()
            except Exception as error:
                if not is_loss(error):
                    raise
                membership.recover(state, error, state.restore)
        call.leave_together()
        result: R = call.result()
        return result

    return run_elastic


def run_fn(func: Callable[..., R], reset: Callable[[], None]) -> Callable[..., R]:
    """Returns run(func). Horovod's `reset` begins Horovod anew; here the ranks do so themselves."""
    return run(func)


class _Call:
    """One call of a function under run()."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._number = state.calls_begun  # to find the result in the progress
        state.calls_begun += 1
        self._own: list[Any] = []  # the result, if this process has it from the function

    def begin(self) -> None:
        state = self._state
        states.current = state
        state.redo_from_commits()
        is_new = not state.holds
        membership.join(state)
        if is_new and state.progress.at_end:
            # What follows in the program may call collectives, which the others have behind them.
            raise SystemExit(0)

    def has_ended(self) -> bool:
        """Returns True if the function has returned, on this rank or on one that was further."""
        return len(self._state.progress.results) > self._number

    def end(self, result: Any) -> None:
        self._own.append(result)
        progress = self._state.progress
        progress.results.append(result if _is_plain(result) else None)
        progress.moment += 1

    def result(self) -> Any:
        return self._own[0] if self._own else self._state.progress.results[self._number]

    def change_ranks(self) -> None:
        """Answers an interrupt of check_host_updates(), or one that the program has raised."""
        if any(look()):
            membership.recover(self._state)
        else:
            self._state.on_reset()
            membership.synchronize(self._state)

    def leave_together(self) -> None:
        """Waits until the function has ended on all ranks, unless one has left it already."""
        while self._state.progress.left <= self._number:
            try:
                if _C.in_elastic_job():
                    barrier()
            except Exception as error:
                if not is_loss(error):
                    raise
                membership.recover(self._state, error)
                continue
            self._state.progress.left += 1
            self._state.progress.moment += 1


def _is_plain(value: Any) -> bool:
    """Returns True for values that any rank may be sent."""
    if isinstance(value, (list, tuple)):
        return type(value) in (list, tuple) and all(map(_is_plain, value))
    if isinstance(value, dict):
        return type(value) is dict and all(map(_is_plain, [*value, *value.values()]))
    return value is None or type(value) in (bool, int, float, str, bytes)
