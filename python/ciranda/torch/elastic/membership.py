"""This process among the ranks of an elastic job: from one World to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ciranda import _C
from ciranda.errors import InvalidArgumentError, RankLostError, ShutdownError
from ciranda.torch import rank_optimizer
from ciranda.torch.elastic.horovod_state import State
from ciranda.torch.elastic.orders import WAIT_MS, is_called, look, wait_for_call
from ciranda.torch.elastic.state import check_registered
from ciranda.torch.process_sets import forget_all
from ciranda.torch.rank_optimizer import OverRanks


def is_loss(error: BaseException | None) -> bool:
    """Returns True if the error says that this World has ended, directly or as a cause."""
    return _loss_in(error) is not None and _C.in_elastic_job()


def _loss_in(error: BaseException | None) -> RankLostError | ShutdownError | None:
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, (RankLostError, ShutdownError)):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def _who_left(error: BaseException | None) -> int | None:
    """Returns the rank that has left this World and is needed, if that is the loss."""
    loss = _loss_in(error)
    return loss.rank if isinstance(loss, RankLostError) and loss.left else None


class Membership:
    """Brings a state from epoch to epoch. One of a process; not thread-safe."""

    def __init__(self) -> None:
        self._said_ready = False
        self.compared: int = 0  # the newest epoch in which all ranks were found to be alike
        self.has_left = False  # before the end of the program

    def join(self, state: State) -> None:
        """Joins the job if this process has not yet. Blocks until the launcher takes it in."""
        if state.holds:
            return
        if not _C.in_elastic_job():
            self.synchronize(state)
            return
        if self._said_ready:
            raise InvalidArgumentError(
                "elastic: a process has one state, from its first loop to its end; register what "
                "this one has in the first one"
            )
        self._said_ready = True
        _C.say_ready()
        self.recover(state)

    def recover(
        self,
        state: State,
        loss: BaseException | None = None,
        restore: Callable[[], None] | None = None,
    ) -> None:
        """Goes on with the ranks of the next epoch. Blocks until they have the newest state.

        `loss`: the error for which this rank leaves its World. If it says that a rank has left, the
        launcher is told, and answers: it has called that rank to another World, and calls this one
        too, or the program of that rank has ended before the others, and the job ends.

        `restore` puts back an older state, before the ranks compare theirs. It is not called while
        another rank may still write to this one's parameters, in a step that they share.

        Ends the program of a rank that is released.
        """
        left = _who_left(loss)
        while True:
            if left is not None:
                _C.tell_who_left(left, state.progress.blocks)
            wait_for_call()
            if look()[1]:
                self.leave()
            try:
                self._enter(state, restore)
            except (RankLostError, ShutdownError) as error:
                left = _who_left(error)
                continue  # another change, while the ranks met
            return

    def _enter(self, state: State, restore: Callable[[], None] | None) -> None:
        optimizers = rank_optimizer.distributed()
        check_registered(optimizers, state)
        # Not all of them, if the last attempt was interrupted.
        leaving = [each for each in optimizers if isinstance(each, OverRanks)]
        for optimizer in leaving:
            optimizer._ciranda_core.hold_step()
        forget_all()
        _C.begin_epoch()  # from here on nobody uses the World before
        rank_optimizer.complete_steps(optimizers)
        for optimizer in leaving:
            optimizer._leave_ranks()
        if restore is not None:
            restore()
        if state.holds:
            state.on_reset()
        self.synchronize(state)
        for optimizer in optimizers:
            rank_optimizer.train_anew(optimizer)
        _C.say_formed(state.progress.blocks)

    def leave(self) -> NoReturn:
        """Ends the program of a rank that is released because its host leaves.

        Only where a block would begin, or when its World has ended: the others go on without it.
        """
        self.has_left = True
        raise SystemExit(0)

    def synchronize(self, state: State) -> None:
        """Gives all ranks of this World the newest state."""
        plan = _C.agree_on_recovery(state.holds, state.progress.moment)
        state.transfer(plan, _C.rank())
        state.holds = True

    def finish(self, state: State | None) -> None:
        """Waits until all ranks are at the end of their programs, and helps those that are not."""
        since = _C.own_epoch()
        if state is None or not state.holds:
            _C.say_at_end(since)
            return
        state.progress.at_end = True
        _end(since)
        while not _C.newest_order().over:
            if is_called():
                self.recover(state)
                _end(since)
            _C.wait_for_order(WAIT_MS)


def _end(since: int) -> None:
    _C.say_at_end(since)
    _C.leave_ranks()  # whoever needs this one for a step then gets an error


membership = Membership()
