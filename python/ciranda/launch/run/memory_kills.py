"""Tells whether the kernel has killed a process because memory ran out."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

_MOUNT = "/sys/fs/cgroup"


def kills_in_own_cgroup(proc: str = "/proc/self/cgroup", mount: str = _MOUNT) -> int:
    """Returns how many processes of this process's cgroup the kernel has killed for memory.

    It did so at the limit of this cgroup, at that of an outer one, or because the machine had no
    memory left. 0 where no count can be read.
    """
    with contextlib.suppress(OSError):
        with open(proc, encoding="utf-8") as file:
            lines = file.read().splitlines()
        for path in _counting_files(lines, mount):
            with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
                return _count_in(file.read())
    return 0


def _counting_files(lines: list[str], mount: str) -> Iterator[str]:
    """Yields where the count may be: cgroups of version 1 and 2, seen from a host or a container.

    A container's own cgroup is its mount, whatever the path in /proc says.
    """
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield f"{mount}/memory{path}/memory.oom_control"
            yield f"{mount}/memory/memory.oom_control"
        elif not controllers:
            yield f"{mount}{path}/memory.events"
            yield f"{mount}/memory.events"


def _count_in(text: str) -> int:
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill":
            return int(number)
    return 0  # a kernel before 4.13


class MemoryKills:
    """Finds the processes that the kernel has killed for memory, by the count of such kills."""

    def __init__(self, count: Callable[[], int] = kills_in_own_cgroup) -> None:
        self._count = count
        self._explained = count()

    def explain(self, exit_code: int) -> bool:
        """Returns True if the count has grown by this end. Is told of each end, in their order."""
        if exit_code == 0:
            return False
        count = self._count()
        if exit_code != -signal.SIGKILL or count <= self._explained:
            # A kill may have been of a child, for whose sake this process has ended otherwise.
            self._explained = count
            return False
        self._explained += 1
        return True
