"""Checkpoints of a training: when one is made, and by whom. The ranks agree here, and only here."""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import socket
import sys
import time
from types import TracebackType
from typing import Any

from ciranda import _C
from ciranda.errors import CirandaError, InvalidArgumentError, MismatchError, UnsupportedError
from ciranda.torch.checkpoints import reader
from ciranda.torch.checkpoints.content import Content
from ciranda.torch.checkpoints.due import Rule, Told, decide, eldest_of
from ciranda.torch.checkpoints.folder import folder_at, name_of, step_of
from ciranda.torch.checkpoints.layout import Layout
from ciranda.torch.checkpoints.state import (
    State,
    check_fits,
    check_state,
    put,
    put_random,
    take,
    take_random,
)
from ciranda.torch.checkpoints.writer import HostBuffer, Plan, Save
from ciranda.torch.elastic.membership import is_loss
from ciranda.torch.elastic.state import TorchState
from ciranda.torch.functions import allgather_object

_AT_EXIT_S = 60.0  # how long the end of a program waits for a write that nobody has waited for


class Checkpoints:
    """Keeps the newest checkpoints of a training in a folder::

        checkpoints = cr.Checkpoints("checkpoints", every_steps=1000, keep=3)
        checkpoints.restore(state)
        for step in elastic.steps(loader, state):
            with step as batch: ...
            checkpoints.step(state)
        checkpoints.close()

    path: a folder that every rank sees, or a URL for fsspec ("s3://bucket/run"), which rank 0
    writes alone. every_steps, every_s: how many calls of step(), or seconds, lie between two
    checkpoints; without both only save() makes them. keep: how many whole ones stay, at least 1.

    A state is an elastic.TorchState, or a dict of name -> module, optimizer, other object with
    state_dict() and load_state_dict(), tensor or plain value; outside elastic jobs only. All ranks
    make the same calls in the same order. Each copies its share of the bytes to the host's memory
    and goes on; a thread writes it. Not thread-safe. Errors of the writing raise on every rank in
    the next step() that looks, in save(), wait() or close(): CirandaError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every_steps: int | None = None,
        every_s: float | None = None,
        keep: int = 2,
    ) -> None:
        if every_steps is not None and every_steps < 1:
            raise InvalidArgumentError(f"Checkpoints: every_steps={every_steps} must be 1 or more")
        if every_s is not None and not every_s > 0:
            raise InvalidArgumentError(f"Checkpoints: every_s={every_s} must be above 0")
        if keep < 1:
            raise InvalidArgumentError(
                f"Checkpoints: keep={keep} would delete the only checkpoint; keep 1 or more"
            )
        self._folder = folder_at(path)
        self._rule, self._keep = Rule(every_steps, every_s), keep
        self._job = os.environ.get("CIRANDA_JOB_ID") or secrets.token_hex(8)
        self._buffer = HostBuffer()
        self._save: Save | None = None
        self._restored = False
        self._prepared_for: int | None = None  # epoch of members
        self._counted = 0  # calls of step(), in this training
        self._seen = -1  # the number of blocks at the latest call of step()
        self._next_look = 0
        self._last, self._last_at = -1, time.monotonic()  # step and time of the latest checkpoint
        self._looked = (0, self._last_at)  # the same of the latest look
        self._closed = False

    def restore(self, state: State) -> int | None:
        """Puts the newest whole checkpoint into the state; returns its step, None without one.

        Collective, but for an elastic job, in which each process calls it before its first loop: a
        rank that joins later gets the state of the others. Any number of ranks may have written it.
        Blocks for the disk. Warns of a checkpoint that is damaged, and takes the one before. Raises
        InvalidArgumentError, before anything is changed, if the state is another one; CirandaError
        if all are damaged, of another format, or not seen by a rank.
        """
        self._check(state)
        if _C.in_elastic_job() and isinstance(state, TorchState) and state.holds:
            raise InvalidArgumentError(
                "Checkpoints: restore() comes before the first loop; this process trains already"
            )
        found = self._read(state, alone=_C.in_elastic_job())
        self._restored = True
        if found is None:
            return None
        put(state, found)
        told = found["ciranda"]
        self._counted = told["counted"]
        self._last, self._last_at = told["step"], time.monotonic()
        if len(told["random"]) == _size() and not _C.in_elastic_job():
            put_random(told["random"][_rank()])
        return int(told["step"])

    def step(self, state: State) -> bool:
        """Counts a step, and begins a checkpoint if one is due; returns whether it has.

        For each step of the training, after the block. If the checkpoint before is still being
        written, this one is put off to the next step. Blocks for the copy; at most steps it does
        nothing. In an elastic job a step is a block that counts, and a checkpoint in which a rank
        is lost is made anew.
        """
        self._check(state)
        number = self._count(state)
        if number is None or (number < self._next_look and self._prepared_for == _epoch()):
            self._raise_alone()
            return False
        return self._look(state, number, wanted=False)

    def save(self, state: State) -> bool:
        """Begins a checkpoint now. Waits for the one before, and blocks for the copy.

        Returns False where a rank of an elastic job is lost meanwhile. Collective, not in a block.
        """
        self._check(state)
        self.wait()
        return self._look(state, self._number(state), wanted=True)

    def wait(self) -> None:
        """Blocks until the checkpoint in the making is whole; raises what went wrong. Collective.

        In an elastic job that loses a rank meanwhile, the checkpoint is given up without an error.
        """
        try:
            self._wait()
        except Exception as error:
            if not is_loss(error):
                raise
            self._give_up_save()

    def close(self) -> None:
        """Does what wait() does, and gives the folder free for another job. Collective."""
        if self._closed:
            return
        try:
            self.wait()
        finally:
            self._end()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:  # the other ranks may not come
            _finish(self)
            self._end()

    def __repr__(self) -> str:
        return f"Checkpoints({str(self._folder)!r})"

    # --- counting ---------------------------------------------------------------------------------

    def _check(self, state: State) -> None:
        if self._closed:
            raise InvalidArgumentError(f"Checkpoints: {self._folder} is closed")
        if _C.is_initialized() and _C.server_count():
            raise UnsupportedError(
                "Checkpoints: in this job parameter servers hold the parameters, and make the "
                "checkpoints: ciranda run --ps N --checkpoint-dir"
            )
        check_state(state)

    def _number(self, state: State) -> int:
        blocks = state.progress.blocks if isinstance(state, TorchState) else 0
        return blocks or self._counted

    def _count(self, state: State) -> int | None:
        """Returns the number of the step; None if no block has counted since the latest call.

        A block that comes again may have begun on other ranks already, which make no call for it.
        """
        self._counted += 1
        number = self._number(state)
        if _C.in_elastic_job() and number == self._seen:
            return None
        self._seen = number
        return number

    # --- agreeing ---------------------------------------------------------------------------------

    def _look(self, state: State, number: int, *, wanted: bool) -> bool:
        try:
            if self._prepared_for != _epoch():
                self._give_up_save()
                self._prepare(number)
            told = self._told(number)
            answers = [Told(*each) for each in _exchange(told.plain())]
            verdict = decide(self._rule, number, answers)
            self._looked, self._next_look = (number, time.monotonic()), verdict.next_look
            if verdict.problem:
                self._raise_all(verdict.problem)
            if not (wanted or verdict.save):
                eldest = eldest_of(answers)
                self._last, self._last_at = eldest.last, time.monotonic() - eldest.age_s
                return False
            self._begin(state, number)
        except Exception as error:
            if not is_loss(error):
                raise
            return False  # the ranks that are left look anew after their next block
        return True

    def _told(self, number: int) -> Told:
        step, at = self._looked
        now = time.monotonic()
        return Told(
            rank=_rank(),
            last=self._last,
            age_s=now - self._last_at,
            pace_s=(now - at) / (number - step) if 0 < step < number else 0.0,
            idle=self._save is None or self._save.done,
            problem=self._problem(),
        )

    def _problem(self) -> str:
        save = self._save
        if save is None:
            return ""
        problem = save.problem if save.done else save.part_problem
        if not problem:
            return ""
        return (
            f"Checkpoints: the checkpoint of step {save.plan.step} failed on rank "
            f"{save.plan.rank} (host {socket.gethostname()}): {problem}"
        )

    def _raise_all(self, problem: str) -> None:
        """Raises what a rank has told to all."""
        self._give_up_save(problem)
        raise CirandaError(problem)

    def _raise_alone(self) -> None:
        if _size() == 1 and (problem := self._problem()):
            self._save = None
            raise CirandaError(problem)

    def _give_up_save(self, why: str = "a rank was lost while it was written") -> None:
        """What is being written has lost a part, unless it is whole already."""
        save, self._save = self._save, None
        if save is not None and not save.done:
            save.give_up(why)
            save.wait()

    def _prepare(self, number: int) -> None:
        """Rank 0 takes the folder, and each rank looks whether it is the same one."""
        mark = problem = ""
        if _rank() == 0:
            try:
                mark = self._folder.prepare(self._job)
                self._refuse_older(number)
            except Exception as error:
                problem = str(error)
        else:
            self._folder.release()
        settings = [str(self._folder), self._rule.every_steps, self._rule.every_s, self._keep]
        told = _exchange([mark, problem, settings])
        for rank, (_, _, theirs) in enumerate(told):
            if theirs != told[0][2]:
                raise MismatchError(
                    f"Checkpoints: rank {rank} has path, every_steps, every_s, keep = {theirs}, "
                    f"and rank 0 has {told[0][2]}; give the same on every rank"
                )
        if told[0][1]:
            raise CirandaError(f"Checkpoints: {told[0][1]}")
        seen = self._folder.sees(told[0][0])
        lacking = f"rank {_rank()} on host {socket.gethostname()}"
        lack = [each for each in _exchange("" if seen else lacking) if each]
        if lack:
            raise CirandaError(
                f"Checkpoints: {', '.join(lack)} does not see the folder {self._folder} that rank "
                "0 sees; give a folder that all hosts share, or a URL for fsspec"
            )
        self._prepared_for = _epoch()
        _open.add(self)

    def _refuse_older(self, number: int) -> None:
        steps = [step_of(name) or 0 for name in self._folder.names() if step_of(name) is not None]
        if steps and max(steps) >= number and not self._restored:
            raise CirandaError(
                f"{self._folder} has a checkpoint of step {max(steps)}, and this training is at "
                f"step {number}: call restore(state) before the loop, or give another folder"
            )

    # --- writing ----------------------------------------------------------------------------------

    def _begin(self, state: State, number: int) -> None:
        temporary = f"{name_of(number)}.{secrets.token_hex(4)}.tmp"
        problem, taken, layout = self._take(state, number, temporary)
        mine = [temporary, taken and taken.digest(), problem and str(problem), take_random()]
        told = _exchange(mine)
        if problem is not None:
            raise problem
        for rank, each in enumerate(told):
            if each[2]:
                raise CirandaError(f"{each[2]} (on rank {rank})")
        assert taken is not None and layout is not None  # noqa: S101
        if any(each[1] != told[0][1] for each in told):
            self._raise_mismatch(taken, told[0][0])
        ranks = list(range(_size())) if self._folder.each_rank_writes else [0]
        shares = layout.shares(len(ranks))
        share = shares[_rank()] if _rank() in ranks else (0, 0)
        plan = Plan(
            step=number,
            temporary=told[0][0],
            layout=layout,
            share=share,
            rank=_rank(),
            writers=ranks,
            pickled=b"" if _rank() else taken.pickled({"random": [each[3] for each in told]}),
            keep=self._keep,
        )
        self._save = Save(plan, self._folder, self._buffer.fill(taken, layout, share))
        self._save.start()
        self._last, self._last_at = number, time.monotonic()

    def _take(
        self, state: State, number: int, temporary: str
    ) -> tuple[Exception | None, Content | None, Layout | None]:
        try:
            if isinstance(state, TorchState):
                for sampler in state._samplers():
                    sampler.unite()
            taken = take(state, number, self._counted)
            layout = Layout([each.size for each in taken.entries], taken.own)
            if _rank() == 0:
                self._folder.create(temporary, layout.end)
        except Exception as error:
            if is_loss(error):
                raise
            return error, None, None
        return None, taken, layout

    def _raise_mismatch(self, taken: Content, temporary: str) -> None:
        lists = _exchange([each.described() for each in taken.entries])
        if _rank() == 0:
            self._folder.remove(temporary)
        for rank, theirs in enumerate(lists):
            for own, other in itertools.zip_longest(lists[0], theirs):
                if own != other:
                    raise MismatchError(
                        f"Checkpoints: rank {rank} has {other or 'nothing more'} where rank 0 has "
                        f"{own or 'nothing more'}; the state must be the same on every rank"
                    )
        raise MismatchError("Checkpoints: the ranks train other parameters; register the same ones")

    def _wait(self) -> None:
        save = self._save
        if save is not None:
            save.wait_for_part()
        told = _exchange(self._problem())
        if not any(told) and save is not None:
            if self._prepared_for != _epoch():
                self._give_up_save()
            else:
                save.wait()
        if not any(told):
            told = _exchange(self._problem())
        for problem in told:
            if problem:
                self._raise_all(problem)

    def _read(self, state: State, *, alone: bool) -> dict[str, Any] | None:
        """Returns what the newest whole checkpoint holds, if it fits."""
        told: list[Any] = ["", ""]
        found = None
        if alone or _rank() == 0:
            try:
                found = reader.read_newest(self._folder)
                told = [found[0] if found else "", ""]
            except CirandaError as error:
                told = ["", f"Checkpoints: {error}"]
        if not alone:
            told = _exchange(told)[0]
        name, problem = told
        if problem:
            raise CirandaError(problem)
        content: dict[str, Any] | None = None
        refusal: Exception | None = None
        if name:
            try:
                content = found[1] if found else self._read_as_rank_0(name)
                check_fits(state, content)
            except (CirandaError, InvalidArgumentError) as error:
                refusal = error
        said = refusal and f"{refusal} (rank {_rank()} on host {socket.gethostname()})"
        answers = [said] if alone else _exchange(said)
        if refusal is not None:
            raise type(refusal)(said)
        for each in answers:
            if each:
                raise CirandaError(each)
        return content

    def _read_as_rank_0(self, name: str) -> dict[str, Any]:
        if name not in self._folder.names():
            raise CirandaError(
                f"Checkpoints: {name}, which rank 0 has read, is not in {self._folder}; give a "
                "folder that all hosts share, or a URL for fsspec"
            )
        return reader.read(self._folder, name)

    def _end(self) -> None:
        self._closed = True
        self._folder.release()
        _open.discard(self)


def _rank() -> int:
    return _C.rank() if _C.is_initialized() else 0


def _size() -> int:
    return _C.size() if _C.is_initialized() else 1


def _epoch() -> int:
    return _C.own_epoch() if _C.in_elastic_job() else 0


def _exchange(mine: Any) -> list[Any]:
    return [mine] if _size() == 1 else allgather_object(mine, "checkpoints")


_open: set[Checkpoints] = set()  # that have a folder, until close()


def _finish(checkpoints: Checkpoints) -> None:
    """Waits for a write at the end of a program that has not called close()."""
    save, checkpoints._save = checkpoints._save, None
    if save is None:
        return
    if not save.wait(_AT_EXIT_S):
        save.give_up("another rank's part did not come")
        save.wait(1.0)
    if save.problem:
        text = f"ciranda: the checkpoint of step {save.plan.step} failed: {save.problem}"
        print(text, file=sys.stderr)


@atexit.register
def _finish_all() -> None:
    for each in list(_open):
        _finish(each)
