"""The loop of an elastic training: blocks that are redone when a rank is lost in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from ciranda import _C
from ciranda.errors import InvalidArgumentError
from ciranda.torch import failure_report
from ciranda.torch.elastic import state as states
from ciranda.torch.elastic.comparison import compare
from ciranda.torch.elastic.dealing import Dealer, check_loader
from ciranda.torch.elastic.horovod_state import State
from ciranda.torch.elastic.membership import is_loss, membership
from ciranda.torch.elastic.orders import look
from ciranda.torch.elastic.state import TorchState
from ciranda.torch.optimizer_classes import Distributed

R = TypeVar("R")


class _Program:
    """Where this process is in its program: how many loops and agreements it has begun."""

    def __init__(self) -> None:
        self.passes = 0
        self.agreements = 0

    def skip_call(self, state: State) -> None:
        """A newcomer does not make a call that the others have ended."""
        ended = (state.progress.passes, len(state.progress.agreements))
        if (self.passes, self.agreements) == ended:
            state.skip_last_call()


_program = _Program()


def steps(loader: DataLoader[Any], state: TorchState) -> Iterator[Step]:
    """Yields the blocks of one pass over the loader's data set, dealt among the ranks::

        for step in elastic.steps(loader, state):
            with step as batch:
                loss = …; loss.backward(); optimizer.step()

    The block swallows the loss of a rank and comes again, with the ranks that are left and samples
    dealt anew, unless a rank has already made the block's step: then it counts on all ranks. Each
    sample of the data set is trained on once in a pass. The loader's batch size is that of each
    rank; its order is drawn from the state's seed. Each block begins with random numbers of torch
    that depend on the seed, the block and the rank. Loops and calls of agreed() must come in the
    same order in every process: one that joins skips those that the others have ended.

    Works without an elastic job, too: then the loss of a rank raises. Blocks until all ranks have
    joined. Raises InvalidArgumentError for a loader whose samples cannot be dealt.
    """
    check_loader(loader)
    number = _program.passes
    _program.passes += 1
    membership.join(state)
    if number < state.progress.passes:
        _program.skip_call(state)
        return
    dealer = Dealer(loader, state.progress.seed, number)
    step = None
    try:
        while True:
            is_released = _heed(state)
            if number < state.progress.passes:
                return
            dealt = dealer.next(state.progress.samples, _C.rank(), _C.size())
            if dealt is None:
                return
            if is_released:
                membership.leave()
            if not _are_alike(state):
                continue
            step = Step(state, *dealt)
            yield step
            if not step.was_entered:
                raise InvalidArgumentError(
                    "elastic.steps: the loop has no `with step as batch:` around its work"
                )
    finally:  # also where the program leaves the loop by break
        ends_program = membership.has_left or (step is not None and step.ends_program)
        if number == state.progress.passes and not ends_program:
            state.progress.samples = 0
            state.progress.passes += 1
            state.progress.moment += 1
            state.end_call()


def agreed(function: Callable[..., R], *arguments: Any) -> R:
    """Returns function(*arguments), which all ranks call alike, for example to evaluate.

    It may call collectives. If a rank is lost meanwhile, the ranks that are left call it again, or
    take the result of a rank that had one. A process that joins later gets the result without the
    call, so it must be the same on every rank, and small. Not within a block.
    """
    state = states.current
    if state is None:
        raise InvalidArgumentError("elastic.agreed: make the TorchState of the training first")
    number = _program.agreements
    _program.agreements += 1
    membership.join(state)
    if number < len(state.progress.agreements):
        _program.skip_call(state)
        return state.progress.agreements[number]  # type: ignore[no-any-return]
    while True:
        _heed(state)
        if number < len(state.progress.agreements):
            return state.progress.agreements[number]  # type: ignore[no-any-return]
        try:
            result = function(*arguments)
        except Exception as error:
            if not is_loss(error):
                raise
            membership.recover(state, error)
            continue
        state.progress.agreements.append(result)
        state.progress.moment += 1
        state.end_call()
        return result


def finish() -> None:
    """Ends this process's part in an elastic job, when its program is at its end."""
    if _C.in_elastic_job() and not membership.has_left:
        if states.current is not None:
            states.current.arrive()
        membership.finish(states.current)


def _heed(state: State) -> bool:
    """Between two blocks: joins the ranks that the launcher has named meanwhile.

    Returns True if this rank is released.
    """
    state.arrive()
    is_called, is_released = look()
    if is_called:
        membership.recover(state)
        state.arrive()
    state.resize(_C.size())
    return is_released


def _are_alike(state: TorchState) -> bool:
    """Compares the ranks before their first block in an epoch; False: a rank is lost meanwhile.

    Here all ranks are at the same point of their programs.
    """
    if membership.compared == _C.own_epoch():
        return True
    try:
        compare(state.trained(), state.registered())
    except Exception as error:
        if not is_loss(error):
            raise
        membership.recover(state, error)
        return False
    membership.compared = _C.own_epoch()
    return True


class Step:
    """One block of the training: `with step as batch`.

    `number` counts the blocks of all passes, from 0. `done` says after the block whether it counts;
    if not, it comes again. All ranks together train on the samples from `begin` to `end` of the
    pass, in its order; so `step.begin / len(data_set)` is how far the pass is, whatever the number
    of ranks has been.
    """

    def __init__(self, state: TorchState, batch: Any, end: int) -> None:
        self._state = state
        self._batch = batch
        self.number = state.progress.blocks  # of the block, from 0, in all passes
        self.begin, self.end = state.progress.samples, end
        self.done = False  # it has counted; False after the block: it comes again
        self.was_entered = False
        self.ends_program = False  # by sys.exit(): no pass ends with it
        self._watched = self._distributed()  # the optimizers whose steps count, with positions
        self._made: set[int] = set()  # positions of optimizers whose step() was called
        self._applied = 0  # of their steps
        self._put_back_steps: Callable[[], None] | None = None
        self._recovered = False  # the loss that ends the block is answered
        self._put_back: Callable[[], None] | None = None

    def __enter__(self) -> Any:
        self.was_entered = True
        progress = self._state.progress
        for position, optimizer in self._watched:
            optimizer._ciranda_guard = _Guard(self, position)
        if _C.in_elastic_job():
            self._put_back = self._state.snapshot()
            self._state.undo_block = self._undo
            _seed(_C.seed_of_block(progress.seed, progress.passes, progress.samples, _C.rank()))
        return self._batch

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        for _, optimizer in self._watched:
            optimizer._ciranda_guard = None
        if error is not None:
            if not isinstance(error, Exception) or not is_loss(error):
                self.ends_program = isinstance(error, SystemExit)
                if isinstance(error, SystemExit) and error.code and _C.in_elastic_job():
                    failure_report.give_up("has ended its program with an error")
                return False
            if not self._recovered:
                self._recover(error)
            if not self._is_over():
                self._redo()
                return True
            self._state.skip_rest_of_block()
        self._state.undo_block = None
        if not self._is_over():
            self._end()
        if self._put_back is not None:  # in an elastic job
            self._state.end_block()
        self.done = True
        return True

    def _distributed(self) -> list[tuple[int, Any]]:
        return [
            (position, optimizer)
            for position, optimizer in enumerate(self._state.optimizers())
            if isinstance(optimizer, Distributed)
        ]

    def _is_over(self) -> bool:
        """Returns True if the block counts: all its steps are made, here or on another rank."""
        return self._state.progress.blocks > self.number

    def _end(self) -> None:
        progress = self._state.progress
        progress.samples = self.end
        progress.blocks += 1
        progress.moment += 1

    def _undo(self) -> None:
        """Puts back what the block has changed, unless the block counts."""
        if self._put_back is not None and not self._is_over():
            self._put_back()
            self._undo_steps()

    def _undo_steps(self) -> None:
        if self._put_back_steps is not None and not self._is_over():
            self._put_back_steps()
            self._put_back_steps = None

    def _redo(self) -> None:
        self._undo()
        self._state.undo_block = None
        for optimizer in self._state.optimizers():
            optimizer.zero_grad(set_to_none=True)
        for parameter in self._state.parameters():
            parameter.grad = None

    # For the guards

    def must_make(self, position: int, *, may_be_torn: bool) -> bool:
        """Returns False if the block counts already: another rank had made its steps.

        `may_be_torn`: the step changes parameters before its last collective.
        """
        if position in self._made:
            raise InvalidArgumentError(
                "elastic: the program calls step() of an optimizer twice in one block; make each "
                "block one step, so that it can be redone"
            )
        self._made.add(position)
        if self._is_over():
            return False
        # The gradients of a redone block must be those of its parameters before any of its steps.
        # A block of one optimizer counts with its step, and is not redone after it.
        is_first = self._put_back_steps is None
        if _C.in_elastic_job() and is_first and (may_be_torn or len(self._watched) > 1):
            self._put_back_steps = self._state.snapshot_steps()
        return True

    def count(self) -> None:
        self._applied += 1
        if self._applied == len(self._watched):
            self._end()

    def recover_in_step(self, loss: Exception, *, may_go_on: bool) -> bool:
        """Answers the loss of a rank in an optimizer's step. True: the block counts and goes on."""
        self._recover(loss)
        goes_on = may_go_on and self._is_over()
        self._recovered = not goes_on
        return goes_on

    def _recover(self, loss: Exception) -> None:
        membership.recover(self._state, loss, self._undo_steps)


def _seed(number: int) -> None:
    """Seeds torch's generators as torch.manual_seed() does, but does not start a GPU for it."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(number)


class _Guard:
    """Watches an optimizer's step within a block."""

    def __init__(self, block: Step, position: int) -> None:
        self._block, self._position = block, position
        self.is_in_step = False

    def step(self, optimizer: Any, closure: Any, args: Any, kwargs: Any) -> Any:
        """Makes the step, unless it is made. Recovers from the loss of a rank in it."""
        block = self._block
        torn = closure is not None or optimizer._ciranda_steps_by_itself
        if not block.must_make(self._position, may_be_torn=torn):
            loss = None if closure is None else closure()  # which all ranks call
            optimizer._finish_gradients()  # what backward() adds from here on is for the next step
            return loss
        self.is_in_step = True
        try:
            return optimizer.step(closure, *args, **kwargs)
        except Exception as error:
            if not is_loss(error):
                raise
            # With a closure the program may need the loss that step() returns.
            if block.recover_in_step(error, may_go_on=closure is None):
                return None
            raise
        finally:
            self.is_in_step = False

    def applied(self) -> None:
        """Counts the step, as soon as parameters have changed."""
        self._block.count()

    def end(self, optimizer: Any) -> None:
        """Counts the step, and ends it."""
        self.applied()
        try:
            optimizer._end_step()
        except Exception as error:
            if not is_loss(error):
                raise
            # Only buffers are missing. The next collective tells of the loss.
