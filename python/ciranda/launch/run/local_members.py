"""The processes of an elastic job on this host, with a socket between each and the arbiter."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from ciranda.launch.plan.launch_plan import LaunchPlan
from ciranda.launch.run.event_loop import EventLoop
from ciranda.launch.run.local_ranks import LocalRanks, News
from ciranda.launch.run.memory_kills import kills_in_own_cgroup

BEAT = b"\x03"  # a process's Beat (core/member/messages)
_MESSAGE_BYTES_MAX = 64 * 1024
_FREEING_MAX_S = 2.0  # far longer than a killed process takes to free its memory

Hear = Callable[[int, bytes], None]  # an incarnation, and a message of its process


class LocalMembers(LocalRanks):
    """Starts and ends single processes, and passes on what they say.

    Messages other than beats are opaque here. Not thread-safe; no method blocks.

    When the kernel has killed a process because memory ran out, all but beats wait until a process
    has ended. Others see the loss before the memory is free. If they went on at once, they would
    need memory where there is none, and the kernel would kill one of them, too.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        news: News,
        loop: EventLoop,
        hear: Hear,
        *,
        stdin: int,
        only_here: str = "",
    ) -> None:
        super().__init__(plan, news, loop, stdin=stdin, only_here=only_here)
        self._hear = hear
        self._sockets: dict[int, int] = {}  # our end -> incarnation
        self._members: dict[int, int] = {}  # number -> incarnation of the process that has it
        self._kills_for_memory = kills_in_own_cgroup()
        self._waiting: list[tuple[int, bytes]] = []  # messages, in their order
        self._wait_until = 0.0

    def start_member(self, number: int, incarnation: int, host_index: int = 0) -> None:
        """Starts a process. No process of its number may run."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        fd = ours.detach()
        self._sockets[fd] = incarnation
        self._members[number] = incarnation
        self._loop.watch(fd, self._on_message)
        with theirs:
            self.start_one(number, incarnation, theirs.fileno())

    def say(self, incarnation: int, message: bytes) -> None:
        """Sends a process a message. One that has read none for hundreds of them is killed."""
        for fd, its in self._sockets.items():
            if its == incarnation:
                self._write(fd, message)

    def _write(self, fd: int, message: bytes) -> None:
        try:
            os.write(fd, message)
        except BlockingIOError:
            for number, incarnation in self._members.items():
                if incarnation == self._sockets[fd]:
                    self.kill_one(number)
        except OSError:  # it has closed its end, and will end itself
            pass

    def give_up(self, host_index: int, why: str) -> None:
        """Never called: there is one host."""

    def settle(self, number: int) -> None:
        """Passes on what is left of a process that has ended, and what all others have said."""
        self._pass_on()
        for fd in list(self._sockets):
            while message := _read(fd):
                self._hear(self._sockets[fd], message)
        incarnation = self._members.pop(number)
        for fd in [fd for fd, its in self._sockets.items() if its == incarnation]:
            self._hang_up(fd)
        self.read_rest(number)

    def deadline(self) -> float | None:
        return self._wait_until if self._waiting else None

    def tick(self, now: float) -> None:
        if now >= self._wait_until:
            self._pass_on()

    def end(self) -> None:
        super().end()
        for fd in list(self._sockets):
            self._hang_up(fd)

    def _on_message(self, fd: int) -> None:
        message = _read(fd)
        if message is None:
            return
        if not message:
            self._hang_up(fd)
        elif message != BEAT and (self._waiting or self._memory_runs_out()):
            self._waiting.append((self._sockets[fd], message))
        else:
            self._hear(self._sockets[fd], message)

    def _memory_runs_out(self) -> bool:
        """Returns True if the kernel has killed a process for memory since the last call."""
        kills = kills_in_own_cgroup()
        has_killed = kills > self._kills_for_memory
        if has_killed:
            self._kills_for_memory = kills
            self._wait_until = time.monotonic() + _FREEING_MAX_S
        return has_killed

    def _pass_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for incarnation, message in waiting:
            self._hear(incarnation, message)

    def _hang_up(self, fd: int) -> None:
        del self._sockets[fd]
        self._loop.unwatch(fd)


def _read(fd: int) -> bytes | None:
    """Returns a message, nothing at the end of the socket, or None if there is no message now."""
    try:
        return os.read(fd, _MESSAGE_BYTES_MAX)
    except BlockingIOError:
        return None
    except OSError:  # the process has closed its end, with messages unread
        return b""
