"""The agent: the program that the launcher starts on each host of a job (ssh.agent_command()).

It sends a greeting, reads its orders from standard input, and starts this host's processes. It
writes their news and their output to standard output. It ends the processes when standard input
ends or is silent for LEASE_S. Imports no torch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import ciranda
from ciranda.launch import call_files
from ciranda.launch.errors import LaunchError
from ciranda.launch.plan import environment
from ciranda.launch.plan.environment import HERE, JobPaths
from ciranda.launch.plan.hosts import AnyPlace
from ciranda.launch.plan.launch_plan import LaunchPlan, plan_launch
from ciranda.launch.plan.processes import server_number
from ciranda.launch.remote import frames
from ciranda.launch.remote.frames import Frame, FrameError, FrameReader
from ciranda.launch.remote.interfaces import choose_addresses, list_addresses
from ciranda.launch.remote.meeting import KEY_BYTES, Meeting, format_endpoint, open_listener
from ciranda.launch.remote.orders import Listen, Orders, decode_orders
from ciranda.launch.remote.outbox import Outbox
from ciranda.launch.run import local, process_tree, supervisor
from ciranda.launch.run.ending import Step
from ciranda.launch.run.event_loop import EventLoop
from ciranda.launch.run.folders import private_folder, temporary_log_dir
from ciranda.launch.run.local_members import BEAT, LocalMembers
from ciranda.launch.run.local_ranks import LocalRanks, allow_descriptors, open_standard_streams

BEAT_S = 0.5
LEASE_S = 2.5  # of silence: five beats are missing, so the peer or the network is gone
START_LIMIT_S = 60.0  # lease until the first beat, as logins to other hosts may be slow

_READ_BYTES = 64 * 1024
_OUTBOX_BYTES_MAX = 1024 * 1024  # beyond it the ranks block on output, as with a slow terminal
_ERROR_FILE_BYTES_MAX = 1024 * 1024
_STEPS = {
    supervisor.INTERRUPT: Step.INTERRUPT,
    supervisor.TERMINATE: Step.TERMINATE,
    supervisor.KILL: Step.KILL,
}
_SIGNALS = {command: number for number, command in supervisor.HAND_ON.items()}


def main() -> None:
    open_standard_streams()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # sshd may block signals that we wait for
    # Other output of this process goes to stderr, so that it does not get between the frames.
    commands, output = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGQUIT, *supervisor.HAND_ON):  # the launcher handles them
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    process_tree.set_name("ciranda-agent")
    process_tree.leave_no_core()
    with contextlib.ExitStack() as stack:
        loop = stack.enter_context(EventLoop())
        Agent(commands, output, loop, stack).run()


class Agent:
    """One host's part of a job. Runs until its processes have ended or the launcher is gone."""

    def __init__(
        self, commands: int, output: int, loop: EventLoop, stack: contextlib.ExitStack
    ) -> None:
        """`stack` removes the folders of the agent at the end."""
        self._loop = loop
        self._stack = stack
        self._outbox = Outbox(output, loop)
        self._reader = FrameReader()
        self._orders: Orders | None = None
        self._key = b""
        self._listeners: dict[int, int] = {}  # sockets by the number of the process
        self._own_rendezvous = ""  # where this host's listen
        self._beating: set[int] = set()  # members that have said that they run
        self._paths: JobPaths | None = None
        self._ready = b""  # the READY frame, sent when PLAN, KEY and CALL have come
        self._ranks: LocalRanks | None = None
        self._running = True
        self._alone = False  # the launcher is gone
        self._got_sigterm = False  # as a machine does before it is taken away
        self._lease_s = START_LIMIT_S
        self._heard = time.monotonic()
        self._next_beat = self._heard
        loop.watch(commands, self._on_commands)

    def run(self) -> None:
        self._outbox.send(f"ciranda {ciranda.__version__}\n".encode())
        self._outbox.send(
            frames.json_frame(frames.HELLO, {"ssh": os.environ.get("SSH_CONNECTION", "")})
        )
        try:
            while self._running:
                self._turn()
        finally:
            if self._ranks is not None:
                self._ranks.end()
        while self._outbox.size_bytes and not self._alone:  # waits for a slow reader
            self._turn()
        self._outbox.close()

    def _turn(self) -> None:
        self._loop.turn(min(self._heard + self._lease_s, self._next_beat) - time.monotonic())
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            if self._outbox.size_bytes == 0:
                self._send_beats()
        if self._got_sigterm:
            self._got_sigterm = False
            self._outbox.send(frames.frame(frames.LEAVING))
        if now >= self._heard + self._lease_s:
            self._leave()
        if self._ranks is not None:
            self._ranks.tick(now)
            self._ranks.pause(self._outbox.size_bytes > _OUTBOX_BYTES_MAX)

    def _leave(self) -> None:
        """Ends the agent after the launcher has closed the pipe or fallen silent."""
        self._alone = True
        self._running = False

    def _stop(self, problem: str) -> None:
        self._outbox.send(frames.frame(frames.PROBLEM, problem.encode()))
        self._running = False

    # Frames of the launcher

    def _on_commands(self, fd: int) -> None:
        chunk = os.read(fd, _READ_BYTES)
        self._heard = time.monotonic()
        if not chunk:
            self._loop.unwatch(fd)
            self._leave()
            return
        try:
            for each in self._reader.feed(chunk):
                self._obey(each)
        except LaunchError as error:
            self._stop(str(error))
        except FrameError as error:
            self._stop(f"the launcher sent {error}")

    def _obey(self, order: Frame) -> None:
        if order.kind == frames.PLAN:
            self._orders = decode_orders(frames.read_json(order.payload))
            if not self._orders.meets:
                self._prepare(self._orders)
        elif order.kind == frames.KEY and self._orders is not None:
            if len(order.payload) != KEY_BYTES:
                raise FrameError("a key of another length")
            self._key = order.payload
            self._prepare(self._orders)
        elif order.kind == frames.CALL and self._paths is not None:
            call_files.take(call_files.call_file(self._paths.log_dir), order.payload)
            if not order.payload:
                self._outbox.send(self._ready)
        elif order.kind == frames.GO and self._orders is not None:
            go = frames.read_json(order.payload)
            self._start(self._orders, go["rendezvous"], go["servers"])
        elif order.kind == frames.ORDER and self._ranks is not None:
            step = _STEPS.get(order.payload)
            if step is not None:
                self._ranks.order(step)
            elif order.payload == supervisor.END_SERVERS:
                self._ranks.end_servers()
            elif order.payload in _SIGNALS:
                self._ranks.hand_on(_SIGNALS[order.payload])
        elif order.kind == frames.BEAT:
            self._lease_s = LEASE_S
        elif isinstance(self._ranks, LocalMembers):
            self._obey_arbiter(self._ranks, order)

    def _obey_arbiter(self, members: LocalMembers, order: Frame) -> None:
        if order.kind == frames.START:
            number, incarnation = frames.read_start(order.payload)
            if self._paths is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._paths.error_file(number))
            members.start_member(number, incarnation)
        elif order.kind == frames.STOP:
            members.kill_one(frames.read_rank(order.payload)[0])
        elif order.kind == frames.MEMBER:
            members.say(*frames.read_rank(order.payload))
        elif order.kind == frames.FINISH:
            members.finish()

    def _prepare(self, orders: Orders) -> None:
        """Does all that may fail before a rank is started. Raises LaunchError."""
        _enter(orders.folder)
        allow_descriptors(len(orders.places) + len(orders.spares) + len(orders.servers))
        job_dir = self._stack.enter_context(private_folder())
        log_dir = self._stack.enter_context(temporary_log_dir())
        self._paths = JobPaths(orders.job_id, job_dir, log_dir)
        ready: dict[str, Any] = {"rendezvous": "", "servers": {}}
        if orders.listen is not None and orders.servers:
            for each in orders.servers:
                where, listener = _listen(orders.listen)
                ready["servers"][str(each.server)] = where
                self._listeners[server_number(each.server)] = listener
        elif orders.listen is not None:
            ready["rendezvous"], listener = _listen(orders.listen)
            self._own_rendezvous = ready["rendezvous"]
            self._listeners[0] = listener
            if orders.elastic is not None:  # whichever process here is rank 0 of an epoch
                numbers = _numbers_of_members(orders)
                self._listeners = {number: os.dup(listener) for number in numbers}
                os.close(listener)
        self._ready = frames.json_frame(frames.READY, ready)
        if not orders.calls:
            self._outbox.send(self._ready)

    def _start(self, orders: Orders, rendezvous: str, servers: Sequence[str]) -> None:
        if orders.elastic is not None:
            rendezvous = self._own_rendezvous  # each epoch names its own
        meeting = Meeting(rendezvous, self._key, self._listeners) if orders.meets else None
        assert self._paths is not None  # noqa: S101 - the launcher waits for READY
        here = {each.server for each in orders.servers}
        servers_at = [HERE if server in here else at for server, at in enumerate(servers)]
        plan = _plan(orders, self._paths, meeting, servers_at)
        null = os.open(os.devnull, os.O_RDONLY)
        only_here = self._paths.log_dir
        if orders.elastic is None:
            self._ranks = LocalRanks(plan, self, self._loop, stdin=null, only_here=only_here)
        else:
            self._ranks = LocalMembers(
                plan, self, self._loop, self._hear_member, stdin=null, only_here=only_here
            )
            signal.signal(signal.SIGTERM, self._on_sigterm)
        self._ranks.start()

    def _on_sigterm(self, *_: object) -> None:
        self._got_sigterm = True

    def _hear_member(self, incarnation: int, message: bytes) -> None:
        if message == BEAT:
            self._beating.add(incarnation)  # sent with the next beat of this agent
        else:
            self._outbox.send(frames.rank_frame(frames.MEMBER, incarnation, message))

    def _send_beats(self) -> None:
        for incarnation in self._beating:
            self._outbox.send(frames.rank_frame(frames.MEMBER, incarnation, BEAT))
        self._beating.clear()
        self._outbox.send(frames.frame(frames.BEAT))

    # News of the ranks, for the launcher

    def started(self, rank: int, pid: int) -> None:
        self._tell(f"start {rank} {pid}")

    def ended(self, rank: int, exit_code: int, for_memory: int = 0) -> None:
        if isinstance(self._ranks, LocalMembers):
            self._ranks.settle(rank)
        if self._paths is not None:
            with contextlib.suppress(OSError), open(self._paths.error_file(rank), "rb") as file:
                report = file.read(_ERROR_FILE_BYTES_MAX)
                self._outbox.send(frames.rank_frame(frames.REPORT, rank, report))
            for chunk in call_files.chunks_of(call_files.outcome_file(self._paths.log_dir, rank)):
                self._outbox.send(frames.rank_frame(frames.OUTCOME, rank, chunk))
        self._tell(f"exit {rank} {exit_code} {for_memory}")

    def starts_again(self, rank: int, exit_code: int) -> None:
        self._tell(f"again {rank} {exit_code}")

    def ended_late(self, rank: int, exit_code: int, is_done: int) -> None:
        self._tell(f"late {rank} {exit_code} {is_done}")

    def refused(self, rank: int, number: int) -> None:
        self._tell(f"fail {rank} {number}")

    def left_behind(self, count: int) -> None:
        self._tell(f"left {count}")

    def printed(self, rank: int, stream: int, chunk: bytes) -> None:
        self._outbox.send(frames.rank_frame(frames.OUTPUT[stream - 1], rank, chunk))

    def over(self, *, lost: str = "") -> None:
        if lost:
            self._stop(lost)
            return
        self._running = False
        assert self._ranks is not None  # noqa: S101 - it tells us
        self._ranks.end()  # sends the rest of the output before `done`
        self._tell("done")

    def _tell(self, line: str) -> None:
        self._outbox.send(frames.frame(frames.NEWS, line.encode()))


def _enter(folder: str) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise LaunchError(
            f"cannot work in the folder {folder}: {error.strerror}; the job needs it on every host"
        ) from error


def _listen(listen: Listen) -> tuple[str, int]:
    """Returns the endpoint that other hosts call, and its listening socket."""
    addresses = [listen.address]
    if listen.nic:
        addresses = choose_addresses(list_addresses(), listen.nic)
    option = "--nic" if listen.nic else "what other hosts call"
    socket = open_listener(addresses, listen.ports, option)
    host, port = socket.getsockname()[:2]
    return format_endpoint(host, port), socket.detach()


def _plan(
    orders: Orders, paths: JobPaths, meeting: Meeting | None, servers_at: Sequence[str]
) -> LaunchPlan:
    places_here: list[AnyPlace] = [*orders.places, *orders.spares, *orders.servers]
    return plan_launch(
        orders.argv,
        ranks=orders.places,
        size=orders.size,
        cores=environment.count_cores(),
        host=places_here[0].host.name,
        paths=paths,
        inherited={**os.environ, **orders.environment},
        # The log folder, as the job's folder is removed before the last outcome is read.
        user={**orders.user, call_files.FOLDER: paths.log_dir} if orders.calls else orders.user,
        columns=orders.columns,
        meeting=meeting,
        servers=orders.servers,
        servers_at=servers_at,
        servers_stay=True,
        server_program=local.SERVER_PROGRAM,
        server_files=orders.server_files,
        restarts=orders.restarts,
        roles=orders.roles,
        horovod_names=orders.horovod_names,
        elastic=orders.elastic,
        spares=orders.spares,
    )


def _numbers_of_members(orders: Orders) -> list[int]:
    return [*(each.rank for each in orders.places), *(each.number for each in orders.spares)]
