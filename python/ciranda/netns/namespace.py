"""One machine of a network: namespaces that live as long as the process that made them.

A machine has its own network, mounts, processes, name and shared memory. No part of it has a name
outside. Its first process holds the namespaces. The kernel ends that process with ours, and all
processes inside end with it. So machines cannot collide, and leave nothing behind, not even after
kill -9.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_KINDS = ("pid_for_children", "ipc", "uts", "net", "mnt")
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
SBIN_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"  # an account may lack sbin

# The arguments are the machine's name, and a folder whose files are laid over those of /etc. An
# ignored SIGCHLD survives exec, so the kernel reaps orphans although sleep never waits.
_FIRST_PROCESS = """
set -e
trap '' CHLD
echo "$1" >/proc/sys/kernel/hostname
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs tmpfs /dev/shm
if [ -d ~root/.ssh ]; then mount -t tmpfs tmpfs ~root/.ssh; fi
mkdir /run/sshd
cd "$2"
find . -type f | while read -r file; do mount --bind "$file" "/etc/$file"; done
cd /
ip link set lo up
echo ready
exec sleep infinity
"""

_UNSHARE = ("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork")

_libc = ctypes.CDLL(None, use_errno=True)


def obstacle() -> str | None:
    """Returns why machines cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("unshare", "ip", "tc"):
        if shutil.which(program, path=SBIN_PATH) is None:
            return f"the program {program} is not installed"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    probe = subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True, text=True)
    return probe.stderr.strip() if probe.returncode else None


class Namespace:
    """A machine without network devices. `etc` has files that it sees instead of those in /etc."""

    def __init__(self, name: str, folder: Path, etc: Mapping[str, str]) -> None:
        """Starts the machine; raises OSError if it does not come up.

        `folder` must exist and be ours. It holds the files of `etc` as long as the machine lives.
        """
        self.name = name
        for path, text in etc.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        first_process = ("sh", "-c", _FIRST_PROCESS, "sh", name, str(folder))
        self._holder = subprocess.Popen(
            [*_UNSHARE, "--kill-child", "--mount-proc", "--", *first_process],
            env={**os.environ, "PATH": SBIN_PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # keeps Ctrl-C for us
            preexec_fn=die_with_parent,  # noqa: PLW1509 - no thread of ours holds a lock here
        )
        self.pid = self._holder.pid
        said = self._holder.stdout.readline() if self._holder.stdout else b""
        if said != b"ready\n":
            said += self._holder.stdout.read() if self._holder.stdout else b""
            self.crash()
            raise OSError(f"{name} does not come up: {said.decode(errors='replace').strip()}")
        self._entrances = entrances_of(self.pid)

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Calls subprocess.run inside; captures the output as text. Blocks."""
        options = {"stdin": subprocess.DEVNULL} | options
        if "input" in options:
            del options["stdin"]
        return subprocess.run(
            argv, check=False, capture_output=True, text=True, **self._inside(options)
        )

    def check(self, argv: Sequence[str], **options: Any) -> str:
        """Returns the output of a command inside; raises OSError if the command fails. Blocks."""
        done = self.run(argv, **options)
        if done.returncode != 0:
            raise OSError(f"{self.name}: {list(argv)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Calls subprocess.Popen inside, in a new session.

        The usual signals and SIGKILL reach the command; SIGSTOP does not.
        """
        return subprocess.Popen(argv, **self._inside(options))

    def ip(self, *lines: str) -> None:
        """Runs lines of `ip -batch`. Their pids are of our pid namespace, not of the machine's."""
        self.in_network("ip", "-batch", "-", text="\n".join(lines) + "\n")

    def in_network(self, *argv: str, text: str = "", may_fail: bool = False) -> None:
        """Runs a program outside of the machine, except that it is in the machine's network."""
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{self.pid}/ns/net", *argv],
            check=False,
            input=text,
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": SBIN_PATH},
        )
        if done.returncode != 0 and not may_fail:
            raise OSError(f"{self.name}: {' '.join(argv)} {text!r}: {done.stderr}")

    def crash(self) -> None:
        """Ends the machine at once, with everything that runs in it. Its peers get no message."""
        self._holder.kill()
        self._holder.wait()
        if self._holder.stdout is not None:
            self._holder.stdout.close()
            self._holder.stdout = None
        for entrance in self.__dict__.pop("_entrances", ()):
            os.close(entrance)

    def _inside(self, options: dict[str, Any]) -> dict[str, Any]:
        return {
            "env": {**os.environ, "PATH": SBIN_PATH},
            "start_new_session": True,
            "preexec_fn": lambda: enter(self._entrances),
            **options,
        }


def entrances_of(pid: int) -> list[int]:
    """Opens the namespaces of the machine with this `Namespace.pid`."""
    return [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in _KINDS]


def enter(entrances: Sequence[int]) -> None:
    """Enters a machine; runs in a child that has one thread. Returns in a child of that child.

    A process cannot move to another pid namespace, only its children can. So the child's child
    goes on, and the child stands in for it.
    """
    folder = os.getcwd()
    die_with_parent()
    for entrance in entrances:
        _check(_libc.setns(entrance, 0))
    os.chdir(folder)  # enters it again, because the mounts are new
    child = os.fork()
    if child != 0:
        _stand_in_for(child)
    die_with_parent()
    for each in _FORWARDED:  # commands started with a shell's & ignore Ctrl-C
        signal.signal(each, signal.SIG_DFL)


def die_with_parent() -> None:
    """Makes the kernel kill this process when the thread that started it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _stand_in_for(child: int) -> NoReturn:
    """Forwards signals to `child`, and ends as `child` ends."""
    try:
        for each in _FORWARDED:
            signal.signal(each, lambda number, _: os.kill(child, number))
        os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # only `child` keeps the ends of pipes
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            for each in _FORWARDED:
                signal.signal(each, signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.waitstatus_to_exitcode(status))
    finally:
        os._exit(255)
