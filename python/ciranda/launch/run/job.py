"""Runs one job: starts its ranks, shows and stores their output, and ends them together."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ciranda.launch.errors import EXIT_NOT_EXECUTABLE, EXIT_SIGNAL_BASE, LaunchError
from ciranda.launch.plan.hosts import Host
from ciranda.launch.plan.launch_plan import LaunchPlan
from ciranda.launch.plan.processes import is_rank, name_of
from ciranda.launch.run.console import Console
from ciranda.launch.run.ending import REASONS, Ending, Reason, Step
from ciranda.launch.run.event_loop import EventLoop
from ciranda.launch.run.failure import FOR_MEMORY, LostHost, RankEnd, signal_words
from ciranda.launch.run.local_ranks import (
    LocalRanks,
    News,
    allow_descriptors,
)
from ciranda.launch.run.output_files import OutputFiles
from ciranda.launch.run.report import report_failure, report_given_up, report_lost_supervisor
from ciranda.launch.run.supervisor import HAND_ON

_SIGNAL_OF = {reason: number for number, reason in REASONS.items()}
# nohup, or a shell that runs us in the background, may have set these to be ignored.
_MAY_BE_IGNORED = (signal.SIGHUP, signal.SIGQUIT, *HAND_ON)


@dataclass(frozen=True)
class JobSettings:
    rerun: str  # the command line to run the job again
    timeout_s: float | None = None
    shown: frozenset[int] | None = None  # None: all ranks
    colour: bool = False
    verbose: bool = False
    keep_logs: bool = False
    output_dir: str | None = None  # folder for files of each rank's stdout and stderr
    timestamps: bool = False  # true: the time before each line on the console


class Ranks(Protocol):
    """The processes of a job: LocalRanks on this host, or HostAgents on several."""

    def start(self) -> None: ...

    def order(self, step: Step) -> None: ...

    def hand_on(self, number: int) -> None:
        """Sends SIGUSR1 or SIGUSR2 to every running process, except servers."""

    def deadline(self) -> float | None:
        """Returns when tick() has something to do; None: never."""

    def tick(self, now: float) -> None: ...

    def end(self) -> None:
        """Ends all processes, whether or not they were over. Blocks until they are gone."""


class JobNews(News, Protocol):
    """News that only ranks on several hosts can bring."""

    def not_started(self, problems: Sequence[str]) -> None:
        """Reports the hosts that cannot take part, a sentence for each. No rank was started."""

    def host_lost(self, host_index: int, why: str) -> None:
        """Reports a lost host. No more news of its processes will follow."""


class ElasticNews(JobNews, Protocol):
    """News that only the processes of an elastic job can bring."""

    def went(self, rank: int, exit_code: int) -> None:
        """Reports the end of a process without which the job goes on."""

    def follows(self, rank: int, text: str) -> None:
        """Reports that another process will take this number. `text` is for its log."""

    def runs_on(self, number: int, host: Host) -> None:
        """Reports on which host the next process of this number runs."""

    def said(self, text: str) -> None:
        """Brings a line for the console."""

    def gave_up(self, cause: str, lost: Sequence[str]) -> None:
        """Reports that the job has lost too much; `lost` names the lost ranks."""


StartRanks = Callable[[ElasticNews, EventLoop], Ranks]


def draw_job_id() -> str:
    # The standard library's secrets module draws from the same source but costs 5 ms to import.
    return os.urandom(16).hex()


def run_job(plan: LaunchPlan, settings: JobSettings, start_ranks: StartRanks | None = None) -> int:
    """Runs the job to its end; returns the exit code of the launcher.

    `start_ranks` None: all ranks of the plan run on this host.
    """
    has_evidence = True
    try:
        with contextlib.ExitStack() as stack:
            code = _Job(plan, settings, stack).run(start_ranks)
        has_evidence = code != 0
    except LaunchError:  # nothing ran
        has_evidence = False
        raise
    finally:
        if not has_evidence and not settings.keep_logs:
            shutil.rmtree(plan.paths.log_dir, ignore_errors=True)
    return code


class _Job:
    def __init__(
        self, plan: LaunchPlan, settings: JobSettings, stack: contextlib.ExitStack
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._stack = stack
        allow_descriptors(len(plan.processes))
        self._console = Console(
            size=plan.size + len(plan.spares),
            ranks=[each.number for each in plan.processes],
            shown=settings.shown,
            stdout=1,
            stderr=2,
            colour=settings.colour,
            timestamps=settings.timestamps,
        )
        self._started = time.monotonic()
        self._ending = Ending(now=self._started, timeout_s=settings.timeout_s)
        self._ordered = Step.RUN
        self._pids: dict[int, int] = {}
        self._ends: list[RankEnd] = []
        self._refused: tuple[int, int] | None = None  # rank, errno
        self._not_started: Sequence[str] = ()
        self._lost_hosts: list[LostHost] = []
        self._given_up: tuple[str, Sequence[str]] | None = None  # the cause, and the lost ranks
        self._lost = ""  # why the ranks were not ended in order; empty: they were
        self._running = True
        self._restarted = 0
        self._gone: set[int] = set()  # workers without which the job goes on
        self._interrupts = 0
        self._loop = stack.enter_context(EventLoop())
        self._files = OutputFiles(
            stack,
            plan.paths,
            [each.number for each in plan.processes],
            size=plan.size + len(plan.spares),
            by_stream=settings.output_dir,
        )

    def run(self, start_ranks: StartRanks | None) -> int:
        self._loop.watch(self._catch_signals(), self._on_signals)
        ranks = self._ranks = self._make_ranks(start_ranks)
        try:
            ranks.start()
            while self._running:
                self._turn()
        finally:
            ranks.end()
        return self._conclude()

    def _make_ranks(self, start_ranks: StartRanks | None) -> Ranks:
        if start_ranks is not None:
            return start_ranks(self, self._loop)
        stdin = _stdin_for_rank_0()
        if self._plan.elastic is None:
            return LocalRanks(self._plan, self, self._loop, stdin=stdin)
        from ciranda.launch.run.elastic_ranks import ElasticRanks  # needs a compiled module

        return ElasticRanks(self._plan, self._plan.elastic, self, self._loop, stdin=stdin)

    def _turn(self) -> None:
        deadlines = [self._ending.deadline, self._console.deadline(), self._ranks.deadline()]
        soonest = min((each for each in deadlines if each is not None), default=None)
        self._loop.turn(None if soonest is None else soonest - time.monotonic())
        now = time.monotonic()
        self._console.tick(now)
        self._ranks.tick(now)
        self._ending.tick(now)
        self._order_step()

    def _order_step(self) -> None:
        if self._ending.step is not self._ordered:
            self._ordered = self._ending.step
            self._ranks.order(self._ordered)

    # Signals to the launcher

    def _catch_signals(self) -> int:
        # Our parent may have blocked signals; a blocked SIGCHLD would wake nobody.
        mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self._stack.callback(os.close, read)
        self._stack.callback(os.close, write)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._stack.callback(signal.set_wakeup_fd, -1)
        for number in (*REASONS, *HAND_ON):
            if number in _MAY_BE_IGNORED and signal.getsignal(number) is signal.SIG_IGN:
                continue
            before = signal.signal(number, self._count_interrupts)
            self._stack.callback(signal.signal, number, before)
        return read

    def _count_interrupts(self, number: int, _frame: object) -> None:
        """Exits on the third Ctrl-C: the loop, which handles signals, may be stuck in a write."""
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 2:
            os._exit(EXIT_SIGNAL_BASE + signal.SIGINT)  # the supervisor kills the tree

    def _on_signals(self, fd: int) -> None:
        for number in os.read(fd, 64):
            if number in HAND_ON:  # Slurm's --signal=USR1@60 asks ranks to save
                self._ranks.hand_on(number)
                continue
            self._ending.signalled(number, time.monotonic())
            if self._ending.step is Step.INTERRUPT:
                self._console.hide_interrupts()
                self._console.say("ciranda: ending the ranks; Ctrl-C again ends them at once")
        self._order_step()

    # News

    def started(self, rank: int, pid: int) -> None:
        self._pids[rank] = pid
        self._verbose(f"{name_of(rank)} is pid {pid}{self._on_host(rank)}")

    def ended(self, rank: int, exit_code: int, for_memory: int = 0) -> None:
        now = time.monotonic()
        if exit_code < 0 and self._may_lose(rank):
            self._gone.add(rank)
            left = self._plan.size - len(self._gone)
            words = signal_words(-exit_code) + for_memory * FOR_MEMORY
            self._console.say(
                f"ciranda: {name_of(rank)} was ended by {words}; "
                f"{left} rank{'s' * (left > 1)} go{'es' * (left == 1)} on"
            )
            return
        by_launcher = self._ending.by_launcher
        self._ends.append(
            RankEnd(rank, self._pids[rank], exit_code, by_launcher, for_memory=for_memory > 0)
        )
        self._tell_end(rank, exit_code, now)
        if exit_code != 0:
            self._ending.rank_failed(now)

    def _may_lose(self, rank: int) -> bool:
        """Returns True for a worker of servers, while more than --min-np are left."""
        least = self._plan.min_np
        if least is None or not is_rank(rank) or self._ending.step is not Step.RUN:
            return False
        return self._plan.size - len(self._gone) > least

    def _tell_end(self, rank: int, exit_code: int, now: float) -> None:
        words = signal_words(-exit_code) if exit_code < 0 else f"exit code {exit_code}"
        self._verbose(f"{name_of(rank)} ended after {now - self._started:.2f} s: {words}")

    def starts_again(self, rank: int, exit_code: int) -> None:
        self._restarted += 1
        self._console.say(
            f"ciranda: {name_of(rank)} was ended by {signal_words(-exit_code)}; it is started "
            f"again, {self._restarted} of {self._plan.restarts}"
        )

    def ended_late(self, rank: int, exit_code: int, is_done: int) -> None:
        now = "its program had ended" if is_done else "its servers, which all workers had left"
        then = "that counts" if is_done else "it is not started again"
        self._console.say(
            f"ciranda: {name_of(rank)} was ended by {signal_words(-exit_code)} after {now}; {then}"
        )

    def refused(self, rank: int, number: int) -> None:
        self._refused = self._refused or (rank, number)
        self._ending.cut_short(time.monotonic())

    def left_behind(self, count: int) -> None:
        self._verbose(f"the ranks left {count} processes behind; ending them")

    def printed(self, rank: int, stream: int, chunk: bytes) -> None:
        if chunk:
            said = self._files.write(rank, stream, chunk)
            if said is not None:
                self._console.say(f"ciranda: {said}")
            self._console.feed(rank, stream, chunk, time.monotonic())
        else:
            self._console.finish(rank, stream)

    def over(self, *, lost: str = "") -> None:
        self._lost = lost
        self._running = False

    def not_started(self, problems: Sequence[str]) -> None:
        self._not_started = problems
        self._running = False

    def host_lost(self, host_index: int, why: str) -> None:
        there = [each for each in self._plan.processes if each.place.host_index == host_index]
        ended = {end.rank for end in self._ends}
        ranks = tuple(each.number for each in there if each.number not in ended)
        host = LostHost(there[0].place.host.destination, ranks, why, after=len(self._ends))
        self._lost_hosts.append(host)
        self._verbose(f"{host.name} is lost: {why}")
        self._ending.cut_short(time.monotonic())

    def went(self, rank: int, exit_code: int) -> None:
        self._console.settle(rank)
        if exit_code == 0:
            self._ends.append(RankEnd(rank, self._pids[rank], exit_code))
        self._tell_end(rank, exit_code, time.monotonic())

    def follows(self, rank: int, text: str) -> None:
        self._console.settle(rank)
        said = self._files.separate(rank, text)
        if said is not None:
            self._console.say(f"ciranda: {said}")

    def runs_on(self, number: int, host: Host) -> None:
        self._plan = self._plan.moved(number, host)

    def said(self, text: str) -> None:
        self._console.say(f"ciranda: {text}")

    def gave_up(self, cause: str, lost: Sequence[str]) -> None:
        self._given_up = (cause, lost)
        self._ending.give_up(time.monotonic())

    def _on_host(self, rank: int) -> str:
        return f" on {self._plan.host_of(rank)}" if self._plan.host_count > 1 else ""

    def _program_of(self, number: int) -> str:
        return next(each.argv[0] for each in self._plan.processes if each.number == number)

    def _verbose(self, text: str) -> None:
        if self._settings.verbose:
            self._console.say(f"ciranda: {text}")

    # The end

    def _conclude(self) -> int:
        plan, settings, reason = self._plan, self._settings, self._ending.reason
        encoding = getattr(sys.stderr, "encoding", None)  # None if stderr was closed
        unicode = (encoding or "").lower().startswith("utf")
        if self._refused is not None:
            rank, number = self._refused
            raise LaunchError(
                f"cannot start '{self._program_of(rank)}'{self._on_host(rank)}: "
                f"{os.strerror(number)}",
                EXIT_NOT_EXECUTABLE,
            )
        if reason in _SIGNAL_OF:
            self._console.say(f"ciranda: {reason.value}; logs: {plan.paths.log_dir}")
            return EXIT_SIGNAL_BASE + _SIGNAL_OF[reason]
        if self._not_started and reason is Reason.FINISHED:
            raise LaunchError("\n".join(self._not_started))
        if reason is Reason.FINISHED and self._lost:
            block = report_lost_supervisor(plan, self._lost, rerun=settings.rerun, unicode=unicode)
            self._console.say(block, error=True)
            return 1
        if reason is Reason.FINISHED:
            return self._with_output()
        if reason is Reason.FAILED and self._given_up is not None:
            block = report_given_up(plan, *self._given_up, rerun=settings.rerun, unicode=unicode)
            self._console.say(block, error=True)
            return 1
        block, code = report_failure(
            plan,
            self._ends,
            reason,
            lost_hosts=self._lost_hosts,
            timeout_s=settings.timeout_s,
            rerun=settings.rerun,
            unicode=unicode,
            restarted=self._restarted,
        )
        self._console.say(block, error=True)
        return code

    def _with_output(self) -> int:
        """Returns 0 for a job that succeeded; 1 if its output, perhaps its purpose, was lost."""
        lost = self._console.lost()
        if not lost:
            return 0
        self._console.say(
            f"ciranda: the job succeeded, but its output could not be shown: {lost}; "
            f"logs: {self._plan.paths.log_dir}"
        )
        return 1


def _stdin_for_rank_0() -> int:
    """Returns our stdin, or /dev/null if a shell runs us in the background of its terminal."""
    try:
        background = os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        background = True
    return os.open(os.devnull, os.O_RDONLY) if background else 0
