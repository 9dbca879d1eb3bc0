"""Finds and ends the descendants of this process by their ids, read from /proc."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_RESCAN_S = 0.02  # between two scans, as a process may fork after a scan and before its end
_STAT_STATE, _STAT_PARENT, _STAT_STARTED = 0, 1, 19  # positions after "pid (comm) "

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    started: int  # the start time: with the pid it names one process, although pids are reused
    zombie: bool


def adopt_orphans() -> None:
    """Makes this process, instead of init, the parent of descendants that lose theirs."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Has this process killed when `parent` dies, or at once if it has died already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def leave_no_core() -> None:
    """Prevents core dumps of this process, and reads of its memory by this user's other processes.

    The same holds for a child until it executes a program.
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def set_name(name: str) -> None:
    """Sets the name that ps shows (at most 15 bytes)."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _prctl(option: int, argument: int) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl")


def descendants(root: int, spare: Collection[int] = ()) -> list[Process]:
    """Returns all processes below `root`, parents first, without the subtrees of `spare`."""
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            process = _read(int(name))
            if process is not None:
                children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    parents = [root]
    while parents:
        below = [each for each in children.pop(parents.pop(), []) if each.pid not in spare]
        found += below
        parents += [process.pid for process in below]
    return found


def _read(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:  # it ended since the folder was listed
        return None
    fields = text.rpartition(b")")[2].split()  # the name before ")" may hold spaces
    return Process(
        pid=pid,
        parent=int(fields[_STAT_PARENT]),
        started=int(fields[_STAT_STARTED]),
        zombie=fields[_STAT_STATE] in (b"Z", b"X"),
    )


def send_signal(process: Process, number: int) -> None:
    """Signals exactly this process. Does nothing if its pid now names another process."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # an old kernel or a sandbox without pidfd
        handle = None
    try:
        now = _read(process.pid)
        if now is None or now.started != process.started:
            return
        if handle is None:
            os.kill(process.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except (ProcessLookupError, PermissionError):  # gone, or it runs as another user (sudo)
        return
    finally:
        if handle is not None:
            os.close(handle)


def signal_descendants(number: int) -> int:
    """Signals every descendant once; returns how many of them were not zombies."""
    found = descendants(os.getpid())
    for process in found:  # zombies too: one whose main thread has ended may have other threads
        send_signal(process, number)
    return sum(not process.zombie for process in found)


def reap() -> list[tuple[int, int]]:
    """Returns ended children as (pid, wait status). Does not block."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def has_children() -> bool:
    """Returns true if there are children. After adopt_orphans() none means no descendants."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_descendants(limit_s: float, spare: Collection[int] = ()) -> list[tuple[int, int]]:
    """Kills the whole tree below this process. Blocks until it is gone, at most `limit_s` seconds.

    Returns the children that it reaped. `spare`: pids of children that are not ours to kill. Needs
    adopt_orphans(): a process that escapes a scan by forking then shows up in the next one, and a
    tree without children is an empty tree.
    """
    ended = reap()
    deadline = time.monotonic() + limit_s
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        while has_children() and time.monotonic() < deadline:
            targets = descendants(os.getpid(), spare)
            if not targets:
                break
            for process in targets:
                send_signal(process, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, _RESCAN_S)
            ended += reap()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return ended
