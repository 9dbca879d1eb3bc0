"""The ranks of this host: their supervisor, the pipes that bring its news and their output."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Collection
from typing import Protocol

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.launch_plan import LaunchPlan
from ciranda.launch.run import process_tree, supervisor
from ciranda.launch.run.ending import Step
from ciranda.launch.run.event_loop import EventLoop

_READ_BYTES = 64 * 1024
_DESCRIPTORS_PER_RANK = 7  # two pipes until the supervisor is forked, a log, a file a stream
_DESCRIPTORS_FREE = 64
_COMMANDS = {
    Step.INTERRUPT: supervisor.INTERRUPT,
    Step.TERMINATE: supervisor.TERMINATE,
    Step.KILL: supervisor.KILL,
}


class News(Protocol):
    """Who is told what becomes of ranks, wherever they run, and of servers, by number."""

    def started(self, rank: int, pid: int) -> None: ...

    def ended(self, rank: int, exit_code: int) -> None:
        """`exit_code` is negative for the number of a signal."""

    def starts_again(self, rank: int, exit_code: int) -> None:
        """It was killed by a signal, -exit_code, and is started anew."""

    def ended_late(self, rank: int, exit_code: int, is_done: int) -> None:
        """It was killed when its servers needed it no more, and is not started anew. `is_done`: its
        program had ended; what follows is an end with 0."""

    def refused(self, rank: int, number: int) -> None:
        """The system does not start it, and says so by an errno. No other rank goes on."""

    def left_behind(self, count: int) -> None:
        """The ranks are gone, but not this many processes, which are ended now."""

    def printed(self, rank: int, stream: int, chunk: bytes) -> None:
        """`stream` is 1 or 2. Without bytes: this was all."""

    def over(self, *, lost: str = "") -> None:
        """Nothing runs any more. `lost`: nor was it ended in order, for this reason."""


def tell(line: str, news: News) -> None:
    """One line of a supervisor."""
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
    """start(), order() and turns of the loop until news.over(), then end() in every case."""

    def __init__(
        self, plan: LaunchPlan, news: News, loop: EventLoop, *, stdin: int, only_here: str = ""
    ) -> None:
        """`stdin` is for rank 0; start() closes it unless it is our own. `only_here`: a folder
        that the supervisor removes where we cannot any more."""
        self._plan = plan
        self._news = news
        self._loop = loop
        self._outputs: dict[int, tuple[int, int]] = {}  # pipe -> rank, 1 or 2
        self._paused = False
        self._events_rest = b""
        self._done = False  # the supervisor has ended the tree and said so
        self._commands = -1
        self._spare = children_before_us()
        self._stdin = stdin
        self._only_here = only_here

    def start(self) -> None:
        process_tree.adopt_orphans()  # when the supervisor is killed, its orphans come to us
        command_read, command_write = os.pipe()
        event_read, event_write = os.pipe()
        outputs = []
        ours = [command_write, event_read]
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
            command_read, event_write, self._stdin, outputs, self._only_here
        )
        self._supervisor = supervisor.fork_supervisor(self._plan, channels, ours)
        self._commands = command_write
        self._loop.watch(event_read, self._on_events)
        theirs = [command_read, event_write, *(fd for pair in outputs for fd in pair)]
        if self._stdin != 0:
            theirs.append(self._stdin)
        meeting = self._plan.meeting
        if meeting is not None:
            theirs += meeting.listeners.values()  # each ends with who listens
        for fd in theirs:
            os.close(fd)

    def order(self, step: Step) -> None:
        if step is Step.GIVE_UP:  # its end is the end of all ranks; end() sees to the rest
            os.kill(self._supervisor, signal.SIGKILL)
        command = _COMMANDS.get(step)
        if command is not None:
            with contextlib.suppress(BrokenPipeError):  # it has just finished
                os.write(self._commands, command)

    def hand_on(self, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, supervisor.HAND_ON[signal.Signals(number)])

    def end_servers(self) -> None:
        """The ranks of all hosts are gone."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, supervisor.END_SERVERS)

    def deadline(self) -> float | None:
        return None

    def tick(self, now: float) -> None:
        """Nothing here depends on the time."""

    def pause(self, paused: bool) -> None:
        """Leaves the ranks' output in their pipes."""
        if paused is not self._paused:
            self._paused = paused
            for fd in self._outputs:
                if paused:
                    self._loop.pause(fd)
                else:
                    self._loop.watch(fd, self._on_output)

    def end(self) -> None:
        """Whatever is left is killed; once is enough. What is in the pipes is all there will be."""
        if self._commands < 0:
            return
        self.pause(False)
        commands, self._commands = self._commands, -1
        os.close(commands)  # should we leave early: the supervisor kills everything
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
    """Children of a shell that became us with `exec ciranda run`: not ours to end."""
    if not process_tree.has_children():
        return ()
    return frozenset(process.pid for process in process_tree.descendants(os.getpid()))


def allow_descriptors(rank_count: int) -> None:
    """Raises the soft limit where a large job needs it; the ranks inherit it."""
    count = _DESCRIPTORS_FREE + _DESCRIPTORS_PER_RANK * rank_count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise LaunchError(f"so many ranks need {count} open files, but the limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def open_standard_streams() -> None:
    """A pipe must not get the number of a standard stream that was closed by our caller."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)
