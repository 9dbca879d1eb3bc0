"""Runs `python script.py …` and `python -m module …` where torch has been imported already.

    done = warm.run(["-m", "ciranda", "run", "-np", "2", "train.py"], env=..., cwd=...)

The program is forked from the nursery of ranks.py, and so is each Python program of these forms
that it starts or becomes, by os.execve or by subprocess. Such a program starts in milliseconds;
the import of torch alone takes a process seconds of a core. Other programs are executed as ever.

A warm program differs from a real one in what it has imported, in /proc/PID/cmdline and at its
end: modules are not torn down. Use it where a test proves something of jobs, and leave real
interpreters to tests of how processes start and end.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import io
import multiprocessing.util
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import ranks

from ciranda.launch.run import process_tree
from ciranda.netns import namespace

_execute_for_real = os.execve
_fork_and_execute_for_real = subprocess._fork_exec  # type: ignore[attr-defined]
_ERRORS = sys.__stdout__.errors if sys.__stdout__ else "strict"  # of the locale
_PR_SET_DUMPABLE = 4
_ENV_START, _ENV_END = 47, 48  # positions in /proc/PID/stat after "pid (comm) "
_OF_TERMINAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Process:
    """A warm program, with what tests use of Popen."""

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        *,
        stdin: str = "",
        streams: tuple[int, int, int] | None = None,
    ) -> None:
        """`streams`: descriptors here for its stdin, stdout and stderr. Without them it reads
        `stdin`, and communicate() returns what it has written."""
        self._folder = tempfile.TemporaryDirectory(prefix="cr-")
        folder = Path(self._folder.name)
        (folder / "stdin").write_text(stdin)
        paths = [str(folder / name) for name in ("stdin", "stdout", "stderr")]
        if streams is not None:
            paths = [f"/proc/{os.getpid()}/fd/{fd}" for fd in streams]
        self.args = [sys.executable, *arguments]
        self._outputs = [Path(path) for path in paths[1:]]
        self._process = ranks.start_in_nursery(
            _begin, [self.args, str(cwd)], dict(env), folder, paths
        )
        self.pid = self._process.pid
        self.poll, self.wait = self._process.poll, self._process.wait
        self.send_signal, self.kill = self._process.send_signal, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def said(self) -> str:
        """Returns what it has written so far, first that to stdout."""
        return "".join(path.read_text(errors="replace") for path in self._outputs)

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """Waits for its end; returns what it wrote to stdout and stderr."""
        self.wait(timeout)
        stdout, stderr = (path.read_text(errors="replace") for path in self._outputs)
        return stdout, stderr


def run(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    stdin: str = "",
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run() of this interpreter with `arguments`, its output captured."""
    process = Process(arguments, env, cwd, stdin=stdin)
    try:
        stdout, stderr = process.communicate(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        print(*process.communicate(), sep="\n")
        raise
    code = process.wait()
    return subprocess.CompletedProcess(process.args, code, stdout, stderr)


def on_host(
    host: namespace.Namespace, arguments: Sequence[str], env: Mapping[str, str]
) -> ranks.OnHost:
    """Starts a warm program in a machine of a test network."""
    return ranks.OnHost(host, _begin, [[sys.executable, *arguments], os.getcwd()], env)


# --- within a warm process -----------------------------------------------------------------------


def _begin(argv: list[str], folder: str) -> NoReturn:
    """The nursery's child becomes the first program."""
    os.chdir(folder)
    for number in _OF_TERMINAL:  # nohup or a shell's `&` may have had pytest ignore them
        signal.signal(number, signal.SIG_DFL)
    os.execve = _execve  # type: ignore[assignment]
    subprocess._fork_exec = _fork_exec  # type: ignore[attr-defined]
    _execve(argv[0], argv, dict(os.environ))


def _warm_words(path: str, argv: Sequence[str]) -> list[str]:
    """Returns the words behind the interpreter and its -u; empty if it has to be executed."""
    words = list(argv[2:] if argv[1:2] == ["-u"] else argv[1:])
    of_program = words[:1] == ["-m"] or any(word.endswith(".py") for word in words[:1])
    return words if path == sys.executable and of_program else []


def _fork_exec(
    args: Sequence[Any],
    executables: Sequence[bytes],
    close_fds: bool,
    keep: Sequence[int],
    cwd: Any,
    variables: Sequence[bytes] | None,
    *rest: Any,
) -> int:
    """As subprocess starts a program, in terms of os.fork and os.execve."""
    path, argv = os.fsdecode(executables[0]), [os.fsdecode(each) for each in args]
    if not _warm_words(path, argv):
        told = (args, executables, close_fds, keep, cwd, variables, *rest)
        return int(_fork_and_execute_for_real(*told))
    stdin, _, _, stdout, _, stderr, _, report, _, new_session, *_ = rest
    prepare = next((each for each in rest if callable(each)), None)
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        for target, source in enumerate((stdin, stdout, stderr)):
            if source > 2:
                os.dup2(source, target)
        if cwd is not None:
            os.chdir(cwd)
        if new_session:
            os.setsid()
        if prepare is not None:
            prepare()
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and close_fds and int(name) not in keep:
                _close_on_execute(int(name), even_if_inheritable=True)
        for fd in keep:
            os.set_inheritable(fd, fd != report)  # its end tells that the program runs
        environment = dict(os.environ)
        if variables is not None:
            pairs = (os.fsdecode(each).partition("=") for each in variables)
            environment = {name: value for name, _, value in pairs}
        _execve(path, argv, environment)
    except Exception as error:
        os.write(report, f"SubprocessError:0:{error!r}".encode())
    os._exit(255)


def _execve(path: str, argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """As os.execve, but a program of this interpreter is run without executing the interpreter."""
    words = _warm_words(path, argv)
    if not words:
        _execute_for_real(path, argv, environment)
    gc.freeze()  # a descriptor closed here may be that of an object, which must not close it again
    for name in os.listdir("/proc/self/fd"):
        _close_on_execute(int(name))
    _set_signals()
    process_tree._prctl(_PR_SET_DUMPABLE, 1)
    process_tree.set_name(os.path.basename(path))
    outer = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(environment)
    _show_environment(environment)
    _set_streams(environment, is_unbuffered=argv[1] == "-u" or "PYTHONUNBUFFERED" in environment)
    _set_threads(environment)
    sys.excepthook = sys.__excepthook__
    atexit._clear()
    atexit.register(multiprocessing.util._exit_function)  # it ends the workers of a DataLoader
    own = [each for each in sys.path[1:] if each not in outer.split(os.pathsep)]
    told = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:] = [os.getcwd(), *told, *own]
    sys.orig_argv = list(argv)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-m":
        sys.argv = words[1:]
        _run_and_leave(lambda: runpy._run_module_as_main(words[1]))
    sys.argv = words
    sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
    _run_and_leave(lambda: _run_script(os.path.abspath(words[0]), vars(main)))


def _close_on_execute(fd: int, even_if_inheritable: bool = False) -> None:
    try:
        if fd > 2 and (even_if_inheritable or not os.get_inheritable(fd)):
            os.close(fd)
    except OSError:  # the one that listed the descriptors
        return


def _set_signals() -> None:
    """Handlers are gone, ignored signals stay, and Python sets its own."""
    signal.set_wakeup_fd(-1)
    faulthandler.disable()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_IGN)


def _show_environment(environment: Mapping[str, str]) -> None:
    """Writes it where the kernel looks for /proc/PID/environ; the nursery has left room there."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    text = b"".join(
        os.fsencode(name) + b"=" + os.fsencode(value) + b"\0" for name, value in environment.items()
    )
    assert len(text) <= end - start, "the environment is larger than the nursery's"
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _set_streams(environment: Mapping[str, str], *, is_unbuffered: bool) -> None:
    encoding, _, errors = environment.get("PYTHONIOENCODING", f"utf-8:{_ERRORS}").partition(":")
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(fd, "wb", closefd=False)
        stream = io.TextIOWrapper(
            raw if is_unbuffered else io.BufferedWriter(raw),  # type: ignore[arg-type]
            encoding=encoding,
            errors="backslashreplace" if fd == 2 else errors or "strict",
            newline="\n",
            line_buffering=(fd == 2 or os.isatty(fd)) and not is_unbuffered,
            write_through=is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _set_threads(environment: Mapping[str, str]) -> None:
    import torch

    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", os.cpu_count() or 1)))


def _run_script(path: str, names: dict[str, Any]) -> None:
    names |= {"__file__": path, "__cached__": None, "__annotations__": {}}
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, names)  # noqa: S102 - a test's own program


def _run_and_leave(program: Callable[[], object]) -> NoReturn:
    """Runs the program to its end, and ends the process as an interpreter would."""
    code: Any = 0
    interrupted = False
    try:
        program()
    except SystemExit as leave:
        code = leave.code
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        code, interrupted = 1, isinstance(error, KeyboardInterrupt)
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # nobody reads it any more
            code = code or 120
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)
