"""This process among the ranks of an elastic job: from one World to the next."""

from __future__ import annotations

from ciranda import _C
from ciranda.errors import InvalidArgumentError, RankLostError, ShutdownError
from ciranda.torch import rank_optimizer
from ciranda.torch.elastic.horovod_state import State
from ciranda.torch.elastic.orders import WAIT_MS, is_called, wait_for_call
from ciranda.torch.elastic.state import check_registered
from ciranda.torch.process_sets import forget_all
from ciranda.torch.rank_optimizer import OverRanks


def is_loss(error: BaseException | None) -> bool:
    """Returns True if the error says that this World has ended, directly or as a cause."""
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, (RankLostError, ShutdownError)):
            return _C.in_elastic_job()
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


class Membership:
    """Brings a state from epoch to epoch. One of a process; not thread-safe."""

    def __init__(self) -> None:
        self._said_ready = False

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

    def recover(self, state: State) -> None:
        """Goes on with the ranks of the next epoch. Blocks until they have the newest state."""
        while True:
            wait_for_call()
            try:
                self._enter(state)
            except (RankLostError, ShutdownError):
                continue  # another change, while the ranks met
            return

    def _enter(self, state: State) -> None:
        optimizers = rank_optimizer.distributed()
        check_registered(optimizers, state)
        for optimizer in optimizers:
            if isinstance(optimizer, OverRanks):  # not if the last attempt was interrupted
                optimizer._leave_ranks()
        forget_all()
        _C.begin_epoch()
        if state.holds:
            state.on_reset()
        self.synchronize(state)
        for optimizer in optimizers:
            rank_optimizer.train_anew(optimizer)
        _C.say_formed(state.progress.blocks)

    def synchronize(self, state: State) -> None:
        """Gives all ranks of this World the newest state."""
        plan = _C.agree_on_recovery(state.holds, state.progress.moment)
        state.transfer(plan, _C.rank())
        state.holds = True

    def finish(self, state: State | None) -> None:
        """Waits until all ranks are at the end of their programs, and helps those that are not."""
        since = _C.own_epoch()
        _C.say_at_end(since)
        if state is None or not state.holds:
            return
        state.progress.at_end = True
        while not _C.newest_order().over:
            if is_called():
                self.recover(state)
                _C.say_at_end(since)
            _C.wait_for_order(WAIT_MS)


membership = Membership()
