"""Asks again and again which hosts an elastic job may use: a script, or a hostfile that changes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.hosts import Host, HostsFrom, gather_here
from ciranda.launch.run import local
from ciranda.launch.run.event_loop import EventLoop
from ciranda.launch.run.failure import signal_words

_EACH_S = 1.0  # Horovod's
_SCRIPT_LIMIT_S = 60.0
_OUTPUT_BYTES_MAX = 1024 * 1024
_READ_BYTES = 64 * 1024
_END_S = 0.5  # for the script to end after it has closed its output


class Discovery:
    """Asks each second, and tells when other hosts are named than before. Never blocks.

    An answer that is wrong counts as none: the hosts stay as they are, and that is said once.
    """

    def __init__(
        self,
        hosts_from: HostsFrom,
        here: str,
        loop: EventLoop,
        *,
        named: Callable[[Sequence[Host]], None],
        said: Callable[[str], None],
        may_be_none: bool = False,
    ) -> None:
        """`here`: this host's name in the plan. `named` gets the hosts, `said` a problem.

        `may_be_none`: to name no host at all is no problem.
        """
        self._from = hosts_from
        self._here = here
        self._loop = loop
        self._named = named
        self._said = said
        self._may_be_none = may_be_none
        self._next = time.monotonic() + _EACH_S
        self._problem = ""  # the latest that was said
        self._newest: object = None  # the time and the size of the hostfile when it was read
        self._pid = 0  # of the script, while it runs
        self._output = b""

    def deadline(self) -> float:
        return self._next

    def tick(self, now: float) -> None:
        if now < self._next:
            return
        if self._pid:  # it has had its time
            self._kill()
            self._next = now + _EACH_S
        elif self._from.script:
            self._next = now + _SCRIPT_LIMIT_S
            self._start_script()
        else:
            self._next = now + _EACH_S
            self._look_at_file()

    def end(self) -> None:
        if self._pid:
            self._kill()

    def _kill(self) -> None:
        """Kills the script and what it has started, which may keep its output open."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    def _start_script(self) -> None:
        self._output = b""
        output, stdout = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            self._pid = local.start_program(
                [self._from.script], os.environ, stdin=null, stdout=stdout, stderr=2
            )
        except OSError as error:
            os.close(output)
            self._complain(f"--host-discovery-script {self._from.script}: {error.strerror}")
            self._next = time.monotonic() + _EACH_S
        else:
            self._loop.watch(output, self._on_output)
        finally:
            os.close(stdout)
            os.close(null)

    def _on_output(self, fd: int) -> None:
        chunk = os.read(fd, _READ_BYTES)
        self._output = (self._output + chunk)[:_OUTPUT_BYTES_MAX]
        if chunk:
            return
        self._loop.unwatch(fd)
        code = local.exit_code_of(self._pid, _END_S)
        self._pid = 0
        self._next = time.monotonic() + _EACH_S
        if code == 0:
            self._take(self._output)
            return
        how = signal_words(-code) if code < 0 else f"exit code {code}"
        self._complain(f"--host-discovery-script {self._from.script}: it ended with {how}")

    def _look_at_file(self) -> None:
        try:
            with open(self._from.hostfile, "rb") as file:
                state = os.fstat(file.fileno())
                newest = (state.st_mtime_ns, state.st_size, state.st_ino)
                if newest == self._newest:
                    return
                text = file.read(_OUTPUT_BYTES_MAX)
        except OSError as error:
            self._complain(f"--hostfile {self._from.hostfile}: {error.strerror}")
            return
        self._newest = newest
        self._take(text)

    def _take(self, text: bytes) -> None:
        try:
            hosts = gather_here(self._from.parse(text.decode("utf-8", "replace")), self._here)
        except LaunchError as error:
            self._complain(str(error))
            return
        if not hosts and not self._may_be_none:
            self._complain(f"--host-discovery-script {self._from.script}: it names no host")
            return
        self._problem = ""
        self._named(hosts)

    def _complain(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._said(f"{problem}; the hosts stay as they are")


def ask_once(hosts_from: HostsFrom, here: str) -> Sequence[Host]:
    """Returns the hosts that the script names now. Blocks. Raises LaunchError."""
    problems: list[str] = []
    found: list[Sequence[Host]] = []
    with EventLoop() as loop:
        asked = Discovery(
            hosts_from, here, loop, named=found.append, said=problems.append, may_be_none=True
        )
        asked.tick(asked.deadline())
        while not found and not problems:
            loop.turn(asked.deadline() - time.monotonic())
            asked.tick(time.monotonic())
    if problems:
        raise LaunchError(problems[0].removesuffix("; the hosts stay as they are"))
    return found[0]


def wait_for_slots(
    hosts_from: HostsFrom, here: str, slots: int, limit_s: float, said: Callable[[str], None]
) -> Sequence[Host]:
    """Returns the hosts once they have so many slots. Blocks. Raises LaunchError if too late."""
    give_up = time.monotonic() + limit_s
    is_told = False
    while True:
        hosts = ask_once(hosts_from, here)
        count = sum(each.slots for each in hosts)
        if count >= slots:
            return hosts
        if time.monotonic() >= give_up:
            raise LaunchError(
                f"--host-discovery-script {hosts_from.script}: after {limit_s:g} s "
                f"(--elastic-timeout) its hosts have {count} of {slots} slots that the job needs"
            )
        if not is_told:
            is_told = True
            said(
                f"the hosts of {hosts_from.script} have {count} of {slots} slots that the job "
                f"needs; it waits up to {limit_s:g} s"
            )
        time.sleep(_EACH_S)
