"""The supervisor: the small process between the launcher and a job's processes on this host.

It is their parent and adopts their orphans, so that the whole tree hangs on it. It obeys one-byte
commands. The end of the command pipe means that the launcher is gone; the supervisor then kills
the whole tree. It always removes the job's folder at the end.

The launcher decides when a job is over. The supervisor decides only two things. Servers end after
the ranks and the coordinator, and the evaluator ends after the servers. A killed process is started
again while restarts are left: a server if it keeps its state, a worker until all workers have left.

In an elastic job the launcher orders each start, through a second socket, on which the process's
own socket to the arbiter comes along.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from ciranda.launch.plan.environment import (
    INCARNATION,
    KEY_FD,
    LIFE,
    MEMBER_FD,
    RENDEZVOUS_FD,
    SERVER_LISTENER_FD,
)
from ciranda.launch.plan.launch_plan import LaunchPlan, ProcessPlan
from ciranda.launch.plan.processes import EVALUATOR, is_server, trains
from ciranda.launch.remote.meeting import Meeting, key_pipe
from ciranda.launch.run import local, process_tree
from ciranda.launch.run.ending import CHECKPOINT_GRACE_S, TERMINATE_GRACE_S
from ciranda.launch.run.memory_kills import MemoryKills

INTERRUPT = b"I"  # SIGINT to the process group of every rank, as a terminal does
TERMINATE = b"T"  # SIGTERM to every rank
KILL = b"K"  # SIGKILL to the whole tree, at once
END_SERVERS = b"E"  # the ranks of all hosts are gone, so servers may end
HAND_ON = {signal.SIGUSR1: b"1", signal.SIGUSR2: b"2"}  # the signal to every rank

# Orders of an elastic job, one datagram each.
START_ONE = "start"  # start NUMBER INCARNATION, and the process's socket to the arbiter comes along
KILL_ONE = "kill"  # kill NUMBER: SIGKILL to the process group
FINISH = "finish"  # nothing is started from now on, so that the job is over with its last process
_ORDER_BYTES_MAX = 256

_BY_US = (-signal.SIGTERM, -signal.SIGKILL)
KILL_LIMIT_S = 10.0  # a process in an uninterruptible system call cannot be killed
_NOTHING: Mapping[str, str] = {}
_NO_FDS: Mapping[str, int] = {}


@dataclass(frozen=True)
class Channels:
    """The supervisor's ends of the pipes to the launcher."""

    commands: int
    # lines: start RANK PID | exit RANK CODE MEMORY | again RANK CODE | late RANK CODE DONE |
    # fail RANK ERRNO | left COUNT | done
    events: int
    stdin: int  # for rank 0
    outputs: Sequence[tuple[int, int]]  # stdout and stderr of every process of the plan
    only_here: str = ""  # a folder to remove if the launcher is gone; empty: none
    orders: socket.socket | None = None  # of an elastic job, which starts with no process


def fork_supervisor(plan: LaunchPlan, channels: Channels, close: Sequence[int]) -> int:
    """Forks the supervisor, which closes `close`, the launcher's ends. Returns its pid."""
    pid = os.fork()
    if pid == 0:
        _be_supervisor(plan, channels, close)
    return pid


def _be_supervisor(plan: LaunchPlan, channels: Channels, close: Sequence[int]) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        os.setsid()
        process_tree.set_name("ciranda-superv")
        process_tree.adopt_orphans()
        for fd in close:
            os.close(fd)
        Supervisor(plan, channels).run()
        code = 0
    except Exception:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)  # whatever is left dies with us (PDEATHSIG) or is killed by the launcher


class Supervisor:
    def __init__(self, plan: LaunchPlan, channels: Channels) -> None:
        self._plan = plan
        self._channels = channels
        self._alive: dict[int, int] = {}  # pid -> number
        self._restarts = plan.restarts  # restarts that are left
        self._lives: Counter[int] = Counter()  # lives beyond the first, by number
        self._kept: dict[int, tuple[ProcessPlan, tuple[int, int]]] = {}  # may be started again
        self._training = -1  # write end of the evaluator's stdin; closed after the training
        self._listeners = dict(plan.meeting.listeners) if plan.meeting is not None else {}
        self._servers_may_end = not plan.servers_stay
        self._servers_told = False  # servers were told to end
        self._workers_left = False  # all of them, in order: a server then ends with 0
        self._over = False
        self._awaits_orders = channels.orders is not None  # starts may still be ordered
        self._kill_at: float | None = None  # when servers or leftovers are killed
        self._memory_kills = MemoryKills()

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._channels.commands, selectors.EVENT_READ)
            selector.register(_wake_on_child(), selectors.EVENT_READ)
            orders = self._channels.orders
            if orders is None:
                self._start_all()
            else:
                selector.register(orders, selectors.EVENT_READ)
                self._keep_all()
            while not self._is_over():
                timeout_s = self._kill_at and max(0.0, self._kill_at - time.monotonic())
                for key, _ in selector.select(timeout_s):
                    if key.fd == self._channels.commands:
                        self._obey()
                    elif orders is not None and key.fileobj is orders:
                        self._take_order(orders)
                    else:
                        os.read(key.fd, 4096)
                self._report(process_tree.reap())
        # The launcher removes it too, but may be gone already without our having noticed.
        shutil.rmtree(self._plan.paths.job_dir, ignore_errors=True)
        self._tell("done")

    def _start_all(self) -> None:
        started = True
        outputs = zip(self._plan.processes, self._channels.outputs, strict=True)
        for process, streams in outputs:
            started = started and self._start(process, streams)
            if self._restarts and process.may_come_back:
                self._kept[process.number] = (process, streams)
            else:
                self._let_go(process.number, streams)
        if not started:
            self._kill_all()

    def _keep_all(self) -> None:
        """Keeps the streams of all processes, as each may be started at any time, and again."""
        for process, streams in zip(self._plan.processes, self._channels.outputs, strict=True):
            self._kept[process.number] = (process, streams)

    def _take_order(self, orders: socket.socket) -> None:
        text, fds, _, _ = socket.recv_fds(orders, _ORDER_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC)
        if not text:  # the launcher is gone
            self._kill_all()
            return
        word, *numbers = text.decode().split()
        if word == START_ONE:
            self._start_one(int(numbers[0]), int(numbers[1]), fds[0])
        elif word == KILL_ONE:
            running = [pid for pid, number in self._alive.items() if number == int(numbers[0])]
            self._signal(running, signal.SIGKILL, group=True)
        else:
            self._awaits_orders = False

    def _start_one(self, number: int, incarnation: int, member: int) -> None:
        """Starts a process of an elastic job. Does nothing if the job ends."""
        try:
            if self._awaits_orders:
                process, streams = self._kept[number]
                told = {INCARNATION: str(incarnation)}
                if not self._start(process, streams, told, {MEMBER_FD: member}):
                    self._kill_all()
        finally:
            os.close(member)

    def _start(
        self,
        process: ProcessPlan,
        streams: tuple[int, int],
        more: Mapping[str, str] = _NOTHING,
        handed_too: Mapping[str, int] = _NO_FDS,
    ) -> bool:
        """Starts a process, with `more` variables, and with descriptors by their variables."""
        number = process.number
        meeting = self._plan.meeting
        stdin = self._stdin_of(number)
        try:
            with _key_of(meeting) as key:
                handed = {**key, **handed_too}
                if number in self._listeners:
                    name = SERVER_LISTENER_FD if is_server(number) else RENDEZVOUS_FD
                    handed[name] = self._listeners[number]
                told = {**more, **{name: str(fd) for name, fd in handed.items()}}
                pid = local.start_program(
                    process.argv,
                    {**process.environment, **told},
                    stdin=stdin,
                    stdout=streams[0],
                    stderr=streams[1],
                    inherit=handed.values(),
                )
        except OSError as error:
            self._tell(f"fail {number} {error.errno}")
            return False
        finally:
            if number != 0:
                os.close(stdin)
        self._alive[pid] = number
        self._tell(f"start {number} {pid}")
        return True

    def _stdin_of(self, number: int) -> int:
        if number == 0:
            return self._channels.stdin
        if number != EVALUATOR:
            return os.open(os.devnull, os.O_RDONLY)
        self._end_training()
        read, self._training = os.pipe()
        return read

    def _end_training(self) -> None:
        """Closes the evaluator's stdin, so that it notices the end of the training."""
        if self._training >= 0:
            os.close(self._training)
            self._training = -1

    def _obey(self) -> None:
        commands = os.read(self._channels.commands, 64)
        self._servers_may_end = self._servers_may_end or ord(END_SERVERS) in commands
        signals = {number: command for number, command in HAND_ON.items() if command in commands}
        for number in signals:
            self._signal_ranks(number, group=False)
        if any(bytes([each]) not in signals.values() for each in commands) or not commands:
            self._restarts = 0  # any other command means that the job ends
            self._awaits_orders = False
        if not commands:  # the launcher is gone
            self._kill_all()
            if self._channels.only_here:
                shutil.rmtree(self._channels.only_here, ignore_errors=True)
        for command in commands:
            if command == ord(INTERRUPT):
                self._signal_ranks(signal.SIGINT, group=True)
            elif command == ord(TERMINATE):
                self._signal_ranks(signal.SIGTERM, group=False)
            elif command == ord(KILL):
                self._kill_all()

    def _signal_ranks(self, number: int, *, group: bool) -> None:
        """Signals all processes except servers, as a rank may save what they hold."""
        self._signal(
            (pid for pid, each in self._alive.items() if not is_server(each)), number, group
        )

    @staticmethod
    def _signal(pids: Iterable[int], number: int, group: bool) -> None:
        for pid in pids:  # not reaped yet, so the pids still name our processes
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if group:
                    os.killpg(pid, number)
                else:
                    os.kill(pid, number)

    def _is_over(self) -> bool:
        """Returns true if nothing runs any more. Advances the end once all ranks are gone.

        It ends the servers, waits for the evaluator without a limit, and ends leftovers. Servers
        and leftovers get SIGTERM first and SIGKILL later.
        """
        alive = self._alive.values()
        if self._over or self._awaits_orders or any(map(trains, alive)):
            return self._over
        if any(map(is_server, alive)):
            if self._servers_may_end:
                self._let_go_kept(spared=EVALUATOR)
                self._end_servers()
            return self._over
        if self._alive:
            self._kill_at = None
            self._end_training()
            return self._over
        self._let_go_kept()
        if process_tree.has_children():
            now = time.monotonic()
            if self._kill_at is None:
                self._tell(f"left {process_tree.signal_descendants(signal.SIGTERM)}")
                self._kill_at = now + TERMINATE_GRACE_S
            elif now >= self._kill_at:
                self._kill_all()
        return self._over or not process_tree.has_children()

    def _let_go_kept(self, spared: int | None = None) -> None:
        for number in [each for each in self._kept if each != spared]:
            _, streams = self._kept.pop(number)
            self._let_go(number, streams)

    def _end_servers(self) -> None:
        now = time.monotonic()
        if not self._servers_told:
            self._servers_told = True
            servers = (pid for pid, number in self._alive.items() if is_server(number))
            self._signal(servers, signal.SIGTERM, False)
            makes_checkpoints = self._plan.server_files.checkpoints is not None
            self._kill_at = now + (CHECKPOINT_GRACE_S if makes_checkpoints else TERMINATE_GRACE_S)
        elif self._kill_at is not None and now >= self._kill_at:
            self._kill_all()

    def _kill_all(self) -> None:
        self._restarts = 0
        self._report(process_tree.kill_descendants(KILL_LIMIT_S))
        self._over = True

    def _report(self, ended: Sequence[tuple[int, int]]) -> None:
        for pid, status in ended:
            number = self._alive.pop(pid, None)
            if number is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            for_memory = self._memory_kills.explain(code)
            if code < 0 and trains(number) and os.path.exists(self._plan.paths.over_file(number)):
                self._tell(f"late {number} {code} 1")
                code = 0
            elif code < 0 and number in self._kept and self._restarts > 0:
                if not (trains(number) and self._workers_left):
                    self._start_again(number, pid, code)
                    continue
                self._tell(f"late {number} {code} 0")
            if self._servers_told and is_server(number) and code in _BY_US:
                code = 0  # the ranks are done, and the server had just been started, or was stopped
            self._workers_left = self._workers_left or (is_server(number) and code == 0)
            if code != 0:
                self._restarts = 0  # the job has failed
            if self._channels.orders is not None and code != 0:
                self._kill_group(pid)  # before the launcher hears: its memory is the others' too
            self._tell(f"exit {number} {code} {int(for_memory)}")

    def _start_again(self, number: int, pid: int, code: int) -> None:
        self._kill_group(pid)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._plan.paths.error_file(number))
        self._restarts -= 1
        self._lives[number] += 1
        self._tell(f"again {number} {code}")
        process, streams = self._kept[number]
        if not self._start(process, streams, {LIFE: str(self._lives[number] + 1)}):
            self._kill_all()

    @staticmethod
    def _kill_group(pid: int) -> None:
        """Kills the processes that a process has started, once it has ended itself."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def _let_go(self, number: int, streams: Sequence[int]) -> None:
        """Closes the streams and the listener of a process that is not started again."""
        listener = self._listeners.pop(number, None)
        for fd in streams if listener is None else (*streams, listener):
            os.close(fd)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone
            os.write(self._channels.events, line.encode() + b"\n")


@contextlib.contextmanager
def _key_of(meeting: Meeting | None) -> Iterator[dict[str, int]]:
    """Yields the pipe that holds the job's key, by the variable that tells its number."""
    if meeting is None:
        yield {}
        return
    key = key_pipe(meeting.key)
    try:
        yield {KEY_FD: key}
    finally:
        os.close(key)


def _wake_on_child() -> int:
    """Returns a descriptor that is readable when a child has ended, own or adopted.

    A pidfd would miss adopted children.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGQUIT, *HAND_ON):  # the launcher handles them
        if signal.getsignal(number) is not signal.SIG_IGN:  # programs inherit an ignored signal
            signal.signal(number, lambda *_: None)
    return read
