"""Runs the processes of an elastic job on this host, as the arbiter decides.

The arbiter is pure (csrc/core/member). This class carries out its actions, and brings it what
happens: ends of processes, through the supervisor; what they say, through a socket to each; time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence

from ciranda._member import Action, ActionKind, Arbiter, EndReason, over_message
from ciranda.launch.plan.elastic import ElasticLimits, start_timeout_s
from ciranda.launch.plan.launch_plan import LaunchPlan
from ciranda.launch.run.elastic_lines import Changes, Departure
from ciranda.launch.run.ending import Step
from ciranda.launch.run.event_loop import EventLoop
from ciranda.launch.run.failure import RankEnd
from ciranda.launch.run.job import ElasticNews
from ciranda.launch.run.local_ranks import LocalRanks
from ciranda.launch.run.report import words_of_end

_MESSAGE_BYTES_MAX = 64 * 1024
_NS = 1_000_000_000
_TIMEOUT_MAX_S = 1e9  # some 30 years, where --elastic-timeout is inf
_FAILURES = (EndReason.failed, EndReason.failed_at_start)  # the failure of one process


class ElasticRanks:
    """The processes of an elastic job, see job.Ranks.

    A process has the number of its slot. Its incarnation, which is never used twice, is what the
    arbiter knows it by.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        limits: ElasticLimits,
        news: ElasticNews,
        loop: EventLoop,
        *,
        stdin: int,
    ) -> None:
        self._plan = plan
        self._news = news
        self._loop = loop
        self._local = LocalRanks(plan, self, loop, stdin=stdin)
        self._arbiter = Arbiter(
            np=limits.np,
            min_np=limits.min_np,
            max_np=limits.max_np,
            spares=limits.spares,
            reset_limit=limits.reset_limit,
            elastic_timeout_s=min(limits.elastic_timeout_s, _TIMEOUT_MAX_S),
            start_timeout_s=start_timeout_s(plan.ranks[0].environment),
            lease_s=min(limits.lease_s, _TIMEOUT_MAX_S),
        )
        self._changes = Changes(limits)
        self._sockets: dict[int, int] = {}  # descriptor of the arbiter's end -> incarnation
        self._running: dict[int, int] = {}  # slot -> incarnation of its process
        self._pids: dict[int, int] = {}  # by slot
        self._ends = False  # the job ends, and the arbiter decides nothing any more
        self._may_leave = False  # processes are told to end, and need not wait for each other

    def start(self) -> None:
        self._local.start()
        self._do(self._arbiter.start(time.monotonic_ns()))

    def order(self, step: Step) -> None:
        self._end_job()
        self._may_leave = self._may_leave or step > Step.WAIT
        self._local.order(step)

    def hand_on(self, number: int) -> None:
        self._local.hand_on(number)

    def deadline(self) -> float | None:
        deadline_ns = None if self._ends else self._arbiter.deadline_ns()
        return None if deadline_ns is None else deadline_ns / _NS

    def tick(self, now: float) -> None:
        deadline_ns = None if self._ends else self._arbiter.deadline_ns()
        now_ns = time.monotonic_ns()
        if deadline_ns is not None and deadline_ns <= now_ns:
            self._do(self._arbiter.tick(now_ns))

    def end(self) -> None:
        self._ends = True
        self._local.end()
        for fd in list(self._sockets):
            self._hang_up(fd)

    # Actions of the arbiter

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if action.kind == ActionKind.start:
                self._start(action.incarnation, action.slot)
            elif action.kind == ActionKind.kill:
                self._kill(action.incarnation)
            elif action.kind == ActionKind.send:
                self._send(action.incarnation, action.payload)
            elif action.kind == ActionKind.news and action.news is not None:
                self._say(self._changes.told(action.news))
            elif action.kind == ActionKind.end and action.reason is not None:
                self._conclude(action.reason, action.incarnation)

    def _start(self, incarnation: int, slot: int) -> None:
        follows = self._changes.started(incarnation, slot)
        if follows:
            self._news.follows(slot, follows)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._plan.paths.error_file(slot))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        fd = ours.detach()
        self._sockets[fd] = incarnation
        self._loop.watch(fd, self._on_message)
        self._running[slot] = incarnation
        with theirs:
            self._local.start_one(slot, incarnation, theirs.fileno())

    def _kill(self, incarnation: int) -> None:
        self._changes.killed(incarnation)
        for slot, running in self._running.items():
            if running == incarnation:
                self._local.kill_one(slot)

    def _send(self, incarnation: int, message: bytes) -> None:
        for fd, its in self._sockets.items():
            if its == incarnation:
                self._write(fd, message)

    def _write(self, fd: int, message: bytes) -> None:
        try:
            os.write(fd, message)
        except BlockingIOError:  # it has read nothing for hundreds of messages
            self._kill(self._sockets[fd])
        except OSError:  # it has closed its end, and will end itself
            pass

    def _say(self, text: str) -> None:
        if text:
            self._news.said(text)

    def _conclude(self, reason: EndReason, incarnation: int) -> None:
        self._end_job()
        if reason == EndReason.finished:
            self._say(self._changes.summary())
        elif reason in _FAILURES or self._is_stuck_by_error(reason, incarnation):
            self._news.ended(*self._changes.slot_and_exit_code(incarnation))
        else:
            self._news.gave_up(self._changes.end_cause(reason), self._changes.losses())

    def _is_stuck_by_error(self, reason: EndReason, incarnation: int) -> bool:
        return reason == EndReason.stuck and self._changes.slot_and_exit_code(incarnation)[1] > 0

    def _end_job(self) -> None:
        if not self._ends:
            self._ends = True
            self._local.finish()

    # What processes say

    def _on_message(self, fd: int) -> None:
        message = _read(fd)
        if message is None:
            return
        if not message:
            self._hang_up(fd)
            return
        if not self._ends:
            self._do(self._arbiter.said(self._sockets[fd], message, time.monotonic_ns()))
        elif self._may_leave:  # it waits for an answer, and the arbiter gives none any more
            self._write(fd, over_message())

    def _hang_up(self, fd: int) -> None:
        del self._sockets[fd]
        self._loop.unwatch(fd)

    def _hear_all(self) -> None:
        """Brings the arbiter all that processes have said before one of them ended."""
        for fd in list(self._sockets):
            while not self._ends and (message := _read(fd)):
                self._do(self._arbiter.said(self._sockets[fd], message, time.monotonic_ns()))

    # News of processes

    def started(self, rank: int, pid: int) -> None:
        self._pids[rank] = pid
        self._news.started(rank, pid)

    def ended(self, rank: int, exit_code: int) -> None:
        if not self._ends:
            self._hear_all()
        incarnation = self._running.pop(rank)
        for fd in [fd for fd, its in self._sockets.items() if its == incarnation]:
            self._hang_up(fd)
        if self._ends:
            self._news.ended(rank, exit_code)
            return
        self._local.read_rest(rank)  # the log then has the last lines
        was_member = self._changes.is_member(incarnation)
        cause = words_of_end(self._plan.paths, RankEnd(rank, self._pids[rank], exit_code))
        self._changes.ended(incarnation, Departure(exit_code, cause))
        actions = self._arbiter.exited(
            incarnation,
            clean=exit_code == 0,
            by_signal=exit_code < 0,
            now_ns=time.monotonic_ns(),
        )
        if not any(each.reason in _FAILURES for each in actions):
            self._news.went(rank, exit_code)
        self._do(actions)
        is_replaced = any(each.kind == ActionKind.start and each.slot == rank for each in actions)
        if not self._ends and not was_member:
            self._say(self._changes.outsider_lost(incarnation, is_replaced))

    def starts_again(self, rank: int, exit_code: int) -> None:
        """Never called: the arbiter decides what is started again."""

    def ended_late(self, rank: int, exit_code: int, is_done: int) -> None:
        """Never called: the arbiter knows who is at the end of the program."""

    def refused(self, rank: int, number: int) -> None:
        self._ends = True
        self._news.refused(rank, number)

    def left_behind(self, count: int) -> None:
        self._news.left_behind(count)

    def printed(self, rank: int, stream: int, chunk: bytes) -> None:
        self._news.printed(rank, stream, chunk)

    def over(self, *, lost: str = "") -> None:
        self._ends = True
        self._news.over(lost=lost)


def _read(fd: int) -> bytes | None:
    """Returns a message, nothing at the end of the socket, or None if there is no message now."""
    try:
        return os.read(fd, _MESSAGE_BYTES_MAX)
    except BlockingIOError:
        return None
    except OSError:  # the process has closed its end, with messages unread
        return b""
