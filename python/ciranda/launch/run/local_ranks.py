"""Runs the processes of this host through a supervisor, with pipes for news and output."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Collection, Sequence
from typing import Protocol

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.launch_plan import LaunchPlan
from ciranda.launch.run import process_tree, supervisor
from ciranda.launch.run.ending import Step
from ciranda.launch.run.event_loop import EventLoop

_READ_BYTES = 64 * 1024
# Two pipes until the supervisor is forked, a log, a file for each stream, a socket to the arbiter.
_DESCRIPTORS_PER_RANK = 8
_DESCRIPTORS_FREE = 64
_COMMANDS = {
    Step.INTERRUPT: supervisor.INTERRUPT,
    Step.TERMINATE: supervisor.TERMINATE,
    Step.KILL: supervisor.KILL,
}


class News(Protocol):
    """Receives the news of processes on any host. `rank` is the number of a process."""

    def started(self, rank: int, pid: int) -> None: ...

    def ended(self, rank: int, exit_code: int, for_memory: int = 0) -> None:
        """Reports an end. A negative `exit_code` is the number of a signal, negated.

        `for_memory` is 1 if the kernel has killed the process because memory ran out.
        """

    def starts_again(self, rank: int, exit_code: int) -> None:
        """Reports that signal -exit_code has killed a process, which is started again."""

    def ended_late(self, rank: int, exit_code: int, is_done: int) -> None:
        """Reports a worker that a signal has killed late, so that it is not started again.

        `is_done` is 1 if its program had ended; an end with 0 follows. It is 0 if all workers had
        left the servers before.
        """

    def refused(self, rank: int, number: int) -> None:
        """Reports, with an errno, that a process could not be started. The whole job ends."""

    def left_behind(self, count: int) -> None:
        """Reports how many processes the ranks have left behind. They are ended now."""

    def printed(self, rank: int, stream: int, chunk: bytes) -> None:
        """Brings output of `stream` 1 (stdout) or 2 (stderr). An empty chunk is its end."""

    def over(self, *, lost: str = "") -> None:
        """Reports that nothing runs any more. `lost`: why it was not ended in order, or empty."""


def tell(line: str, news: News) -> None:
    """Passes one line of a supervisor to `news`."""
    word, *texts = line.split()
    numbers = [int(text) for text in texts]
    if word == "start":
        news.started(*numbers)
    elif word == "exit":
        news.ended(*numbers)
    elif word == "again":
        news.starts_again(*numbers)
    elif word == "late":
        news.ended_late(*numbers)
    elif word == "fail":
        news.refused(*numbers)
    elif word == "left":
        news.left_behind(*numbers)


class LocalRanks:
    """The processes of a plan on this host, see job.Ranks.

    The owner calls start(), turns the loop until news.over(), and then calls end() in every case.
    """

    def __init__(
        self, plan: LaunchPlan, news: News, loop: EventLoop, *, stdin: int, only_here: str = ""
    ) -> None:
        """`stdin` is for rank 0; start() closes it unless it is our own. The supervisor removes
        the folder `only_here` if this process is gone."""
        self._plan = plan
        self._news = news
        self._loop = loop
        self._outputs: dict[int, tuple[int, int]] = {}  # pipe -> number of the process, 1 or 2
        self._paused = False
        self._events_rest = b""
        self._done = False  # the supervisor has ended the tree and said so
        self._commands = -1
        self._orders: socket.socket | None = None  # to the supervisor of an elastic job
        self._spare = children_before_us()
        self._stdin = stdin
        self._only_here = only_here

    def start(self) -> None:
        process_tree.adopt_orphans()  # when the supervisor is killed, its orphans come to us
        command_read, command_write = os.pipe()
        event_read, event_write = os.pipe()
        outputs = []
        ours = [command_write, event_read]
        orders = None
        if self._plan.elastic is not None:
            self._orders, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.append(self._orders.fileno())
        for process in self._plan.processes:
            ends = []
            for stream in (1, 2):
                read, write = os.pipe()
                os.set_blocking(read, False)
                self._outputs[read] = (process.number, stream)
                self._loop.watch(read, self._on_output)
                ours.append(read)
                ends.append(write)
            outputs.append((ends[0], ends[1]))
        channels = supervisor.Channels(
            command_read, event_write, self._stdin, outputs, self._only_here, orders
        )
        self._supervisor = supervisor.fork_supervisor(self._plan, channels, ours)
        self._commands = command_write
        self._loop.watch(event_read, self._on_events)
        theirs = [command_read, event_write, *(fd for pair in outputs for fd in pair)]
        if self._stdin != 0:
            theirs.append(self._stdin)
        meeting = self._plan.meeting
        if meeting is not None:
            theirs += meeting.listeners.values()  # the supervisor and its children have them now
        for fd in theirs:
            os.close(fd)
        if orders is not None:
            orders.close()

    # Orders of an elastic job

    def start_one(self, number: int, incarnation: int, member: int) -> None:
        """Starts a process, which gets the socket `member`. No process of its number may run."""
        self._tell_supervisor(f"{supervisor.START_ONE} {number} {incarnation}", [member])

    def kill_one(self, number: int) -> None:
        self._tell_supervisor(f"{supervisor.KILL_ONE} {number}")

    def finish(self) -> None:
        """Makes the end of the running processes the end of the job."""
        self._tell_supervisor(supervisor.FINISH)

    def read_rest(self, number: int) -> None:
        """Passes on all output that a process has left, before another one takes its number."""
        for fd in [fd for fd, (owner, _) in self._outputs.items() if owner == number]:
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(fd, _READ_BYTES):
                    self._news.printed(*self._outputs[fd], chunk)

    def _tell_supervisor(self, text: str, fds: Sequence[int] = ()) -> None:
        assert self._orders is not None  # noqa: S101 - the job is elastic
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # over() tells its end
            socket.send_fds(self._orders, [text.encode()], fds)

    def order(self, step: Step) -> None:
        if step is Step.GIVE_UP:  # all ranks die with it; end() does the rest
            os.kill(self._supervisor, signal.SIGKILL)
        command = _COMMANDS.get(step)
        if command is not None:
            with contextlib.suppress(BrokenPipeError):  # the supervisor has just finished
                os.write(self._commands, command)

    def hand_on(self, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, supervisor.HAND_ON[signal.Signals(number)])

    def end_servers(self) -> None:
        """Lets the servers end, because the ranks of all hosts are gone."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, supervisor.END_SERVERS)

    def deadline(self) -> float | None:
        return None

    def tick(self, now: float) -> None:
        """Does nothing, as nothing here depends on the time."""

    def pause(self, paused: bool) -> None:
        """Leaves the output in its pipes while `paused`, so that ranks wait."""
        if paused is not self._paused:
            self._paused = paused
            for fd in self._outputs:
                if paused:
                    self._loop.pause(fd)
                else:
                    self._loop.watch(fd, self._on_output)

    def end(self) -> None:
        """Kills whatever is left, and reads the pipes to the end. Blocks. Idempotent."""
        if self._commands < 0:
            return
        self.pause(False)
        commands, self._commands = self._commands, -1
        os.close(commands)  # the supervisor then kills everything, if we leave early
        if self._orders is not None:
            self._orders.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._supervisor, 0)
        process_tree.kill_descendants(supervisor.KILL_LIMIT_S, self._spare)
        for fd in list(self._outputs):
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(fd, _READ_BYTES):
                    self._news.printed(*self._outputs[fd], chunk)
            self._end_output(fd)

    def _on_events(self, fd: int) -> None:
        chunk = os.read(fd, _READ_BYTES)
        if not chunk:
            self._loop.unwatch(fd)
            lost = "" if self._done else _LOST_SUPERVISOR.format(pid=self._supervisor)
            self._news.over(lost=lost)
            return
        *lines, self._events_rest = (self._events_rest + chunk).split(b"\n")
        for line in lines:
            self._done = self._done or line == b"done"
            tell(line.decode(), self._news)

    def _on_output(self, fd: int) -> None:
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self._news.printed(*self._outputs[fd], chunk)
        else:
            self._end_output(fd)

    def _end_output(self, fd: int) -> None:
        self._loop.unwatch(fd)
        self._news.printed(*self._outputs.pop(fd), b"")


_LOST_SUPERVISOR = "the launcher's own supervisor (pid {pid}) was killed, and every rank with it"


def children_before_us() -> Collection[int]:
    """Returns descendants of a shell that became us by `exec ciranda run`: not ours to end."""
    if not process_tree.has_children():
        return ()
    return frozenset(process.pid for process in process_tree.descendants(os.getpid()))


def allow_descriptors(rank_count: int) -> None:
    """Raises the soft limit of open files if a large job needs it. The ranks inherit it."""
    count = _DESCRIPTORS_FREE + _DESCRIPTORS_PER_RANK * rank_count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise LaunchError(f"so many ranks need {count} open files, but the limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def open_standard_streams() -> None:
    """Opens standard streams that the caller has closed, so that no pipe gets their numbers."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
