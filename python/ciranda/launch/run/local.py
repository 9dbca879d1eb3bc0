"""Starts programs on this host from argv arrays, without a shell."""

from __future__ import annotations

import errno
import os
import signal
import struct
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

import ciranda as ciranda_package
from ciranda.launch.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, LaunchError
from ciranda.launch.run.process_tree import die_with_parent

_ERRNO = struct.Struct("i")
# Python and the launcher change these for themselves; a program expects the defaults.
_DEFAULT_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGCHLD,
)


def resolve_command(command: Sequence[str], search_path: Sequence[str]) -> tuple[str, ...]:
    """Returns the full command: this Python for `train.py …` and `-m module …`, else a program."""
    if not command:
        raise LaunchError("no command given; try: ciranda run -np 2 train.py")
    program, *arguments = command
    if program == "-m":
        if not arguments:
            raise LaunchError("-m needs the name of a module")
        return (sys.executable, *command)
    if program.endswith(".py"):
        if os.path.isfile(program):
            return (sys.executable, *command)
        if "/" in program or _search(program, search_path) is None:
            where = os.path.dirname(os.path.abspath(program))
            raise LaunchError(
                f"the script '{os.path.basename(program)}' was not found in {where}",
                EXIT_NOT_FOUND,
            )
    return (_find_program(program, search_path), *arguments)


def _find_program(program: str, search_path: Sequence[str]) -> str:
    if "/" in program:
        if not os.path.exists(program):
            raise LaunchError(f"the program '{program}' does not exist", EXIT_NOT_FOUND)
        if os.path.isdir(program):
            raise LaunchError(f"'{program}' is a folder, not a program", EXIT_NOT_EXECUTABLE)
        if not os.access(program, os.X_OK):
            raise LaunchError(
                f"the file '{program}' is not executable; try: chmod +x {program}",
                EXIT_NOT_EXECUTABLE,
            )
        return program
    found = _search(program, search_path)
    if found is not None:
        return found
    hint = f"; the file here is meant with ./{program}" if os.path.isfile(program) else ""
    raise LaunchError(f"the program '{program}' was not found on PATH{hint}", EXIT_NOT_FOUND)


def _search(program: str, search_path: Sequence[str]) -> str | None:
    for folder in search_path:
        path = os.path.join(folder, program)
        if program and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


# The program of a parameter server.
SERVER_PROGRAM = os.path.join(os.path.dirname(ciranda_package.__file__), "bin", "ciranda-ps")


def start_program(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    inherit: Collection[int] = (),
) -> int:
    """Forks and executes; returns the pid, or raises OSError with the errno of execve.

    The program gets the three streams, and the descriptors `inherit` under their numbers here. It
    leads its own session, so a terminal's Ctrl-C does not reach it. The kernel kills it when this
    process dies.
    """
    parent = os.getpid()
    error_read, error_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        streams = (stdin, stdout, stderr)
        _become_program(argv, environment, streams, inherit, parent, error_write)
    os.close(error_write)
    report = os.read(error_read, _ERRNO.size)  # empty once execve has closed the other end
    os.close(error_read)
    if report:
        os.waitpid(pid, 0)
        number = _ERRNO.unpack(report)[0]
        raise OSError(number, os.strerror(number), argv[0])
    return pid


def exit_code_of(pid: int, limit_s: float) -> int:
    """Returns the exit code of a child that has closed its output and is about to end.

    Blocks. Kills the child after `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found == pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def _become_program(
    argv: Sequence[str],
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    inherit: Collection[int],
    parent: int,
    error_write: int,
) -> NoReturn:
    try:
        os.setsid()
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for each in _DEFAULT_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for target, source in enumerate(streams):
            os.dup2(source, target)
        for fd in inherit:
            os.set_inheritable(fd, True)
        os.execve(argv[0], list(argv), dict(environment))  # noqa: S606 - an argv array, no shell
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        os.write(error_write, _ERRNO.pack(number or errno.EINVAL))
    finally:
        os._exit(EXIT_NOT_FOUND)
