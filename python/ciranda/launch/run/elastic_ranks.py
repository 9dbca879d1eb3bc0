"""Runs the processes of an elastic job as the arbiter decides.

The arbiter is pure (csrc/core/member). This class carries out its actions, and brings it what
happens: ends of processes, what they say, lost hosts, time. Members does the rest, on this host or
through the agents of several.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ciranda._member import Action, ActionKind, Arbiter, EndReason, News, over_message
from ciranda.launch.plan.elastic import ElasticLimits, start_timeout_s
from ciranda.launch.plan.hosts import Host
from ciranda.launch.plan.launch_plan import LaunchPlan
from ciranda.launch.run.elastic_lines import Changes, Departure
from ciranda.launch.run.ending import Step
from ciranda.launch.run.event_loop import EventLoop
from ciranda.launch.run.failure import RankEnd
from ciranda.launch.run.job import ElasticNews, JobNews, Ranks
from ciranda.launch.run.local_members import LocalMembers
from ciranda.launch.run.report import words_of_end

_NS = 1_000_000_000
_TIMEOUT_MAX_S = 1e9  # some 30 years, where --elastic-timeout is inf
_FAILURES = (EndReason.failed, EndReason.failed_at_start)  # the failure of one process


@dataclass(frozen=True)
class HostAt:
    """A host on which processes can be started."""

    index: int  # which the host keeps
    host: Host
    meet_at: str  # where its ranks listen

    @property
    def name(self) -> str:
        return self.host.destination


class Members(Ranks, Protocol):
    """The processes of an elastic job: LocalMembers on this host, or ElasticAgents on several."""

    def start_member(self, number: int, incarnation: int, host_index: int) -> None: ...

    def kill_one(self, number: int) -> None: ...

    def say(self, incarnation: int, message: bytes) -> None: ...

    def give_up(self, host_index: int, why: str) -> None:
        """Treats the host as one that is silent: reports it as lost."""

    def settle(self, number: int) -> None:
        """Brings what processes have said, and printed, before the process ended."""

    def finish(self) -> None:
        """Makes the end of the running processes the end of the job."""


class MemberNews(JobNews, Protocol):
    """News that Members bring."""

    def may_start(self, hosts: Sequence[HostAt]) -> None:
        """Reports that processes can be started. `hosts`: by index; none: all are on this one."""

    def heard(self, incarnation: int, message: bytes) -> None:
        """Brings a message of a process."""

    def host_beats(self, host_index: int) -> None:
        """Reports that a host runs. What its processes had said by then has been brought."""

    def host_leaves(self, host_index: int, why: str) -> None:
        """Reports that a host will be gone soon."""

    def host_came(self, host: HostAt) -> None:
        """Reports that processes can be started on a further host, or on one that was gone."""

    def said(self, text: str) -> None:
        """Tells the user."""


MakeMembers = Callable[[MemberNews, EventLoop], Members]


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
        stdin: int = -1,
        make_members: MakeMembers | None = None,
    ) -> None:
        """`stdin` is for rank 0, if all processes run on this host: `make_members` is None."""
        self._plan = plan
        self._limits = limits
        self._news = news
        self._is_here = make_members is None
        self._members: Members = (
            LocalMembers(plan, self, loop, self.heard, stdin=stdin)
            if make_members is None
            else make_members(self, loop)
        )
        self._arbiter: Arbiter | None = None  # from the start to the end of its decisions
        self._changes = Changes(limits)
        self._untold: list[News] = []  # they name a lost process that is not reaped yet
        self._hosts: list[HostAt] = []  # by their number in the arbiter
        self._running: dict[int, int] = {}  # slot -> incarnation of its process
        self._places: dict[int, int] = {}  # slot -> index of the host of its latest process
        self._pids: dict[int, int] = {}  # by slot
        self._may_leave = False  # processes are told to end, and need not wait for each other
        self._over = False

    def start(self) -> None:
        self._members.start()
        if self._is_here:
            self.may_start([])

    def order(self, step: Step) -> None:
        self._end_job()
        self._may_leave = self._may_leave or step > Step.WAIT
        self._members.order(step)

    def hand_on(self, number: int) -> None:
        self._members.hand_on(number)

    def deadline(self) -> float | None:
        of_arbiter = None if self._arbiter is None else self._arbiter.deadline_ns()
        deadlines = [self._members.deadline(), None if of_arbiter is None else of_arbiter / _NS]
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now: float) -> None:
        self._members.tick(now)
        deadline_ns = None if self._arbiter is None else self._arbiter.deadline_ns()
        now_ns = time.monotonic_ns()
        if self._arbiter is not None and deadline_ns is not None and deadline_ns <= now_ns:
            self._do(self._arbiter.tick(now_ns))

    def end(self) -> None:
        self._stop_deciding()
        self._members.end()

    def _stop_deciding(self) -> None:
        self._over = True
        self._arbiter = None

    # Actions of the arbiter

    def _make_arbiter(self) -> Arbiter:
        limits = self._limits
        slots = sorted((*self._plan.ranks, *self._plan.spares), key=lambda each: each.number)
        return Arbiter(
            np=limits.np,
            min_np=limits.min_np,
            max_np=limits.max_np,
            spares=limits.spares,
            reset_limit=limits.reset_limit,
            elastic_timeout_s=min(limits.elastic_timeout_s, _TIMEOUT_MAX_S),
            start_timeout_s=start_timeout_s(self._plan.ranks[0].environment),
            lease_s=min(limits.lease_s, _TIMEOUT_MAX_S),
            hosts=[(each.host.slots, each.meet_at) for each in self._hosts],
            homes=[each.place.host_index for each in slots] if self._hosts else [],
            hosts_may_join=limits.hosts_may_come,
        )

    def _do(self, actions: Sequence[Action]) -> None:
        given_up = [action for action in actions if action.kind == ActionKind.give_up]
        for action in actions:
            if action.kind == ActionKind.start:
                self._start(action.incarnation, action.slot, action.host)
            elif action.kind == ActionKind.kill:
                self._kill(action.incarnation)
            elif action.kind == ActionKind.send:  # to members alone
                self._changes.named(action.incarnation)
                self._members.say(action.incarnation, action.payload)
            elif action.kind == ActionKind.news and action.news is not None:
                self._untold.append(action.news)
                self._tell()
            elif action.kind == ActionKind.end and action.reason is not None:
                self._conclude(action.reason, action.incarnation, action.step)
        for action in given_up:  # last, since the arbiter hears of it at once
            self._give_up(action.host, action.by)

    def _give_up(self, host: int, by: int) -> None:
        why = f"host {self._hosts[by].name} cannot reach it"
        self._members.give_up(self._hosts[host].index, why)

    def _start(self, incarnation: int, slot: int, host: int) -> None:
        follows = self._changes.started(incarnation, slot)
        if follows:
            self._news.follows(slot, follows)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._plan.paths.error_file(slot))
        self._running[slot] = incarnation
        if self._hosts:
            self._news.runs_on(slot, self._hosts[host].host)
        self._places[slot] = self._hosts[host].index if self._hosts else 0
        self._members.start_member(slot, incarnation, self._places[slot])

    def _kill(self, incarnation: int) -> None:
        self._changes.killed(incarnation)
        for slot, running in self._running.items():
            if running == incarnation:
                self._members.kill_one(slot)

    def _tell(self) -> None:
        """Tells the news in their order, as far as it is known how the lost processes ended."""
        while self._untold and self._changes.knows_ends(self._untold[0]):
            self._say(self._changes.told(self._untold.pop(0)))

    def _say(self, text: str) -> None:
        if text:
            self._news.said(text)

    def _conclude(self, reason: EndReason, incarnation: int, step: int) -> None:
        self._end_job()
        if reason == EndReason.finished:
            self._say(self._changes.summary())
        elif reason in _FAILURES or self._is_stuck_by_error(reason, incarnation):
            self._news.ended(*self._changes.slot_and_end(incarnation))
        elif reason == EndReason.left_early:
            cause = self._changes.left_early(incarnation, step)
            self._news.gave_up(cause, self._changes.losses())
        else:
            self._news.gave_up(self._changes.end_cause(reason), self._changes.losses())

    def _is_stuck_by_error(self, reason: EndReason, incarnation: int) -> bool:
        return reason == EndReason.stuck and self._changes.slot_and_end(incarnation)[1] > 0

    def _end_job(self) -> None:
        if not self._over:
            self._stop_deciding()
            self._members.finish()

    # News of members

    def may_start(self, hosts: Sequence[HostAt]) -> None:
        if self._over:
            return
        self._hosts = list(hosts)
        self._arbiter = self._make_arbiter()
        self._do(self._arbiter.start(time.monotonic_ns()))

    def heard(self, incarnation: int, message: bytes) -> None:
        if self._arbiter is not None:
            self._do(self._arbiter.said(incarnation, message, time.monotonic_ns()))
        elif self._may_leave:  # it waits for an answer, and the arbiter gives none any more
            self._members.say(incarnation, over_message())

    def host_beats(self, host_index: int) -> None:
        if self._arbiter is not None:
            self._do(self._arbiter.host_beats(self._number_of(host_index), time.monotonic_ns()))

    def host_lost(self, host_index: int, why: str) -> None:
        if self._arbiter is None:  # the job ends
            self._news.host_lost(host_index, why)
            return
        there = [slot for slot in self._running if self._places[slot] == host_index]
        lost = [self._running.pop(slot) for slot in there]
        number = self._number_of(host_index)
        self._say(self._changes.host_lost(self._hosts[number].name, why, lost))
        self._tell()
        self._do(self._arbiter.host_lost(number, time.monotonic_ns()))

    def host_leaves(self, host_index: int, why: str) -> None:
        if self._arbiter is not None:
            number = self._number_of(host_index)
            self._say(self._changes.host_leaves(self._hosts[number].name, why))
            self._do(self._arbiter.host_leaves(number, time.monotonic_ns()))

    def host_came(self, host: HostAt) -> None:
        if self._arbiter is None:
            return
        now_ns = time.monotonic_ns()
        if all(each.index != host.index for each in self._hosts):
            self._hosts.append(host)
            self._say(self._changes.host_joins(host.name))
            self._do(self._arbiter.host_joins(host.host.slots, host.meet_at, now_ns))
        else:
            self._say(self._changes.host_returned(host.name))
            number = self._number_of(host.index)
            self._do(self._arbiter.host_returned(number, host.meet_at, now_ns))

    def said(self, text: str) -> None:
        self._say(text)

    def _number_of(self, host_index: int) -> int:
        """Returns the arbiter's number of a host: it counts them as they come."""
        return [each.index for each in self._hosts].index(host_index)

    def not_started(self, problems: Sequence[str]) -> None:
        self._over = True
        self._news.not_started(problems)

    # News of processes

    def started(self, rank: int, pid: int) -> None:
        self._pids[rank] = pid
        self._news.started(rank, pid)

    def ended(self, rank: int, exit_code: int, for_memory: int = 0) -> None:
        self._members.settle(rank)  # the log then has the last lines
        incarnation = self._running.pop(rank)
        if self._arbiter is None:
            self._news.ended(rank, exit_code, for_memory)
            return
        was_member = self._changes.is_member(incarnation)
        cause = words_of_end(self._plan.paths, RankEnd(rank, self._pids[rank], exit_code))
        self._changes.ended(incarnation, Departure(exit_code, cause, for_memory > 0))
        self._tell()
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
        if self._arbiter is not None and not was_member:
            self._say(self._changes.outsider_lost(incarnation, is_replaced))

    def starts_again(self, rank: int, exit_code: int) -> None:
        """Never called: the arbiter decides what is started again."""

    def ended_late(self, rank: int, exit_code: int, is_done: int) -> None:
        """Never called: the arbiter knows who is at the end of the program."""

    def refused(self, rank: int, number: int) -> None:
        self._stop_deciding()
        self._news.refused(rank, number)

    def left_behind(self, count: int) -> None:
        self._news.left_behind(count)

    def printed(self, rank: int, stream: int, chunk: bytes) -> None:
        self._news.printed(rank, stream, chunk)

    def over(self, *, lost: str = "") -> None:
        self._stop_deciding()
        self._news.over(lost=lost)
