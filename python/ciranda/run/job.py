"""Runs one job on this host: starts the supervisor, shows and stores output, ends the job."""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ciranda.run import process_tree, supervisor
from ciranda.run.console import Console
from ciranda.run.ending import Ending, Reason, Step
from ciranda.run.environment import JobPlaces
from ciranda.run.errors import EXIT_NOT_EXECUTABLE, EXIT_SIGNAL_BASE, LaunchError
from ciranda.run.failure import RankEnd, signal_words
from ciranda.run.launch_plan import LaunchPlan
from ciranda.run.report import report_failure, report_lost_supervisor

_READ_BYTES = 64 * 1024
_DESCRIPTORS_PER_RANK = 5  # two pipes until the supervisor is forked, and a log
_DESCRIPTORS_FREE = 64
_WAIT_MAX_S = 86_400.0  # epoll cannot wait for --timeout inf
_COMMANDS = {
    Step.INTERRUPT: supervisor.INTERRUPT,
    Step.TERMINATE: supervisor.TERMINATE,
    Step.KILL: supervisor.KILL,
}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNAL_OF = {
    Reason.INTERRUPTED: signal.SIGINT,
    Reason.TERMINATED: signal.SIGTERM,
    Reason.HUNG_UP: signal.SIGHUP,
}


@dataclass(frozen=True)
class JobSettings:
    rerun: str  # the command line to run the job again
    timeout_s: float | None = None
    shown: frozenset[int] | None = None  # None: all ranks
    colour: bool = False
    verbose: bool = False
    keep_logs: bool = False


@contextlib.contextmanager
def job_places(log_dir: str | None) -> Iterator[JobPlaces]:
    """Makes the job's private folder, which is removed in every case, and its log folder."""
    # The standard library's secrets module draws from the same source but costs 5 ms to import.
    job_id = os.urandom(16).hex()
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # Short: the path of a Unix socket has to fit into 107 bytes.
    parent = runtime if len(runtime) < 64 and os.access(runtime, os.W_OK | os.X_OK) else "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
    try:
        job_dir = tempfile.mkdtemp(prefix="ciranda-", dir=parent)
    except OSError as error:
        raise LaunchError(f"cannot make a folder in {parent}: {error.strerror}") from error
    try:
        yield JobPlaces(job_id, job_dir, _make_log_dir(log_dir))
    finally:
        shutil.rmtree(job_dir, ignore_errors=True)


def _make_log_dir(log_dir: str | None) -> str:
    try:
        if log_dir is None:
            return tempfile.mkdtemp(prefix="ciranda-logs-")
        os.makedirs(log_dir, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"cannot use the folder '{error.filename}': {error.strerror}") from error
    return os.path.abspath(log_dir)


def run_job(plan: LaunchPlan, settings: JobSettings) -> int:
    """Runs the job to its end; returns the exit code of the launcher."""
    has_evidence = True
    try:
        with contextlib.ExitStack() as stack:
            code = _Job(plan, settings, stack).run()
        has_evidence = code != 0
    except LaunchError:  # nothing ran
        has_evidence = False
        raise
    finally:
        if not has_evidence and not settings.keep_logs:
            shutil.rmtree(plan.places.log_dir, ignore_errors=True)
    return code


class _Job:
    def __init__(
        self, plan: LaunchPlan, settings: JobSettings, stack: contextlib.ExitStack
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._stack = stack
        _open_standard_streams()
        _allow_descriptors(_DESCRIPTORS_FREE + _DESCRIPTORS_PER_RANK * plan.size)
        self._console = Console(
            size=plan.size, shown=settings.shown, stdout=1, stderr=2, colour=settings.colour
        )
        self._started = time.monotonic()
        self._ending = Ending(now=self._started, timeout_s=settings.timeout_s)
        self._sent = Step.RUN
        self._pids: dict[int, int] = {}
        self._ends: list[RankEnd] = []
        self._outputs: dict[int, tuple[int, int]] = {}  # pipe -> rank, 1 or 2
        self._start_error: OSError | None = None
        self._done = False  # the supervisor has ended the tree and said so
        self._events_rest = b""
        self._running = True
        self._interrupts = 0
        self._selector = stack.enter_context(selectors.DefaultSelector())

    def run(self) -> int:
        spare = _children_before_us()
        process_tree.adopt_orphans()  # when the supervisor is killed, its orphans come to us
        self._logs = self._open_logs()
        self._watch(self._catch_signals(), self._on_signals)
        self._start_supervisor()
        try:
            self._loop()
        finally:
            os.close(self._commands)  # should we leave early: the supervisor kills everything
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._supervisor, 0)
            process_tree.kill_descendants(supervisor.KILL_LIMIT_S, spare)
        self._drain()
        return self._conclude()

    def _start_supervisor(self) -> None:
        command_read, command_write = os.pipe()
        event_read, event_write = os.pipe()
        outputs = []
        ours = [command_write, event_read]
        for rank in range(self._plan.size):
            ends = []
            for stream in (1, 2):
                read, write = os.pipe()
                os.set_blocking(read, False)
                self._outputs[read] = (rank, stream)
                self._watch(read, self._on_output)
                ours.append(read)
                ends.append(write)
            outputs.append((ends[0], ends[1]))
        stdin = _stdin_for_rank_0()
        channels = supervisor.Channels(command_read, event_write, stdin, outputs)
        self._supervisor = supervisor.fork_supervisor(self._plan, channels, ours)
        self._commands = command_write
        self._watch(event_read, self._on_events)
        theirs = [command_read, event_write, *(fd for pair in outputs for fd in pair)]
        for fd in theirs if stdin == 0 else [*theirs, stdin]:
            os.close(fd)

    def _loop(self) -> None:
        while self._running:
            deadlines = [self._ending.deadline, self._console.deadline()]
            soonest = min((each for each in deadlines if each is not None), default=None)
            timeout_s = None
            if soonest is not None:
                timeout_s = min(max(0.0, soonest - time.monotonic()), _WAIT_MAX_S)
            # In the order of their numbers: what a rank printed comes before its traceback.
            for key, _ in sorted(self._selector.select(timeout_s), key=lambda ready: ready[0].fd):
                key.data(key.fd)
            now = time.monotonic()
            self._console.tick(now)
            self._ending.tick(now)
            self._send_step()

    def _send_step(self) -> None:
        step = self._ending.step
        if step is not self._sent:
            self._sent = step
            if step is Step.GIVE_UP:  # its end is the end of all ranks; we see to the rest
                os.kill(self._supervisor, signal.SIGKILL)
            command = _COMMANDS.get(step)
            if command is not None:
                with contextlib.suppress(BrokenPipeError):  # it has just finished
                    os.write(self._commands, command)

    # Signals to the launcher

    def _catch_signals(self) -> int:
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self._stack.callback(os.close, read)
        self._stack.callback(os.close, write)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._stack.callback(signal.set_wakeup_fd, -1)
        for number in _SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started by nohup
            before = signal.signal(number, self._count_interrupts)
            self._stack.callback(signal.signal, number, before)
        return read

    def _count_interrupts(self, number: int, _frame: object) -> None:
        """The loop does the work; a third Ctrl-C helps where it is stuck in writing."""
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 2:
            os._exit(EXIT_SIGNAL_BASE + signal.SIGINT)  # the supervisor kills the tree

    def _on_signals(self, fd: int) -> None:
        for number in os.read(fd, 64):
            self._ending.signalled(number, time.monotonic())
            if self._ending.step is Step.INTERRUPT:
                self._console.hide_interrupts()
                self._console.say("ciranda: ending the ranks; Ctrl-C again ends them at once")
        self._send_step()

    # What the supervisor tells

    def _on_events(self, fd: int) -> None:
        chunk = os.read(fd, _READ_BYTES)
        if not chunk:
            self._running = False
            self._unwatch(fd)
            return
        *lines, self._events_rest = (self._events_rest + chunk).split(b"\n")
        for line in lines:
            word, *numbers = line.decode().split()
            self._on_event(word, [int(number) for number in numbers])

    def _on_event(self, word: str, numbers: list[int]) -> None:
        if word == "start":
            self._pids[numbers[0]] = numbers[1]
            self._verbose(f"rank {numbers[0]} is pid {numbers[1]}")
        elif word == "exit":
            self._on_exit(numbers[0], os.waitstatus_to_exitcode(numbers[1]))
        elif word == "fail":
            self._start_error = OSError(numbers[1], os.strerror(numbers[1]))
        elif word == "left":
            self._verbose(f"the ranks left {numbers[0]} processes behind; ending them")
        elif word == "done":
            self._done = True

    def _on_exit(self, rank: int, code: int) -> None:
        now = time.monotonic()
        end = RankEnd(rank, self._pids[rank], code, self._ending.by_launcher)
        self._ends.append(end)
        words = signal_words(-code) if code < 0 else f"exit code {code}"
        self._verbose(f"rank {rank} ended after {now - self._started:.2f} s: {words}")
        if code != 0:
            self._ending.rank_failed(now)

    def _verbose(self, text: str) -> None:
        if self._settings.verbose:
            self._console.say(f"ciranda: {text}")

    # The ranks' output

    def _open_logs(self) -> list[int]:
        logs = []
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        for rank in range(self._plan.size):
            path = self._plan.places.log_file(rank)
            try:
                logs.append(os.open(path, flags, 0o644))
            except OSError as error:
                raise LaunchError(f"cannot write '{path}': {error.strerror}") from error
            self._stack.callback(os.close, logs[-1])
            with contextlib.suppress(FileNotFoundError):  # of an earlier job in this folder
                os.unlink(self._plan.places.error_file(rank))
        return logs

    def _on_output(self, fd: int) -> None:
        try:
            chunk = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self._take_output(fd, chunk)
        else:
            self._end_output(fd)

    def _take_output(self, fd: int, chunk: bytes) -> None:
        rank, stream = self._outputs[fd]
        self._log(rank, chunk)
        self._console.feed(rank, stream, chunk, time.monotonic())

    def _end_output(self, fd: int) -> None:
        self._console.finish(*self._outputs.pop(fd))
        self._unwatch(fd)

    def _log(self, rank: int, chunk: bytes) -> None:
        view = memoryview(chunk)
        try:
            while view and self._logs[rank] >= 0:
                view = view[os.write(self._logs[rank], view) :]
        except OSError as error:
            self._logs[rank] = -1  # the console goes on
            self._console.say(f"ciranda: the log of rank {rank} ends here: {error.strerror}")

    def _drain(self) -> None:
        """The tree is gone: what is in the pipes is all there will be, whoever holds them."""
        for fd in list(self._outputs):
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(fd, _READ_BYTES):
                    self._take_output(fd, chunk)
            self._end_output(fd)

    def _watch(self, fd: int, call: Callable[[int], None]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, call)

    def _unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)

    # The end

    def _conclude(self) -> int:
        plan, settings, reason = self._plan, self._settings, self._ending.reason
        unicode = (sys.stderr.encoding or "").lower().startswith("utf")
        if self._start_error is not None:
            program = plan.ranks[0].argv[0]
            raise LaunchError(
                f"cannot start '{program}': {self._start_error.strerror}", EXIT_NOT_EXECUTABLE
            )
        if reason in _SIGNAL_OF:
            number = _SIGNAL_OF[reason]
            self._console.say(f"ciranda: {reason.value}; logs: {plan.places.log_dir}")
            return EXIT_SIGNAL_BASE + number
        if reason is Reason.FINISHED and not self._done:
            self._console.say(
                report_lost_supervisor(
                    plan, self._supervisor, rerun=settings.rerun, unicode=unicode
                ),
                error=True,
            )
            return 1
        if reason is Reason.FINISHED:
            return 0
        block, code = report_failure(
            plan,
            self._ends,
            reason,
            timeout_s=settings.timeout_s,
            rerun=settings.rerun,
            unicode=unicode,
        )
        self._console.say(block, error=True)
        return code


def _children_before_us() -> frozenset[int]:
    """Children of a shell that became us with `exec ciranda run`: not ours to end."""
    if not process_tree.has_children():
        return frozenset()
    return frozenset(process.pid for process in process_tree.descendants(os.getpid()))


def _open_standard_streams() -> None:
    """A pipe must not get the number of a standard stream that was closed by our caller."""
    fd = os.open(os.devnull, os.O_RDWR)
    while fd <= 2:
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)


def _allow_descriptors(count: int) -> None:
    """Raises the soft limit where a large job needs it; the ranks inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise LaunchError(f"so many ranks need {count} open files, but the limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _stdin_for_rank_0() -> int:
    """Ours, unless we run in the background of a terminal: then it belongs to the shell."""
    try:
        background = os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp()
    except OSError:
        background = True
    return os.open(os.devnull, os.O_RDONLY) if background else 0
