"""Runs the processes of several hosts through an agent on each host."""

from __future__ import annotations

import contextlib
import enum
import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import ciranda
from ciranda.launch import call_files
from ciranda.launch.errors import EXIT_NOT_FOUND, LaunchError
from ciranda.launch.plan.hosts import AnyPlace, Host, HostsFrom, Place, ServerPlace, SparePlace
from ciranda.launch.plan.launch_plan import LaunchPlan
from ciranda.launch.plan.processes import server_number, trains
from ciranda.launch.remote import frames, ssh
from ciranda.launch.remote.agent import LEASE_S
from ciranda.launch.remote.frames import Frame, FrameError, FrameReader
from ciranda.launch.remote.meeting import Ports, parse_endpoint
from ciranda.launch.remote.orders import Listen, Orders, encode_orders
from ciranda.launch.remote.outbox import Outbox
from ciranda.launch.remote.pulse import fork_pulse
from ciranda.launch.run import local, process_tree, supervisor
from ciranda.launch.run.ending import Step
from ciranda.launch.run.event_loop import EventLoop
from ciranda.launch.run.failure import signal_words
from ciranda.launch.run.job import JobNews
from ciranda.launch.run.local_ranks import children_before_us, tell

_READ_BYTES = 64 * 1024
_SAID_BYTES_MAX = 8 * 1024  # kept of output before the greeting, and of stderr
_LEAVE_S = 2.0  # for an agent to remove its folders and to end
_KILL_LIMIT_S = 2.0
_SLOW_BYTES_PER_S = 1_000_000  # the slowest network on which a call has time to arrive
_GREETING = re.compile(rb"^ciranda \S+\r?\n", re.MULTILINE)
_COMMANDS = {
    Step.INTERRUPT: supervisor.INTERRUPT,
    Step.TERMINATE: supervisor.TERMINATE,
    Step.KILL: supervisor.KILL,
}
_OF_RANKS = (frames.NEWS, *frames.OUTPUT, frames.REPORT, frames.OUTCOME)


@dataclass(frozen=True)
class Task:
    """The plan of a job, and what its agents need to run it."""

    plan: LaunchPlan
    folder: str
    environment: Mapping[str, str]  # the launcher's part for all hosts
    user: Mapping[str, str]
    columns: int | None
    key: bytes = field(repr=False)  # empty if one host runs all processes
    nic: str = ""
    ports: Ports = field(default_factory=Ports)
    interpreter: str = sys.executable  # Python of other hosts
    ssh_options: Sequence[str] = ()
    horovod_names: bool = False
    call_folder: str = ""  # the folder of a call of ciranda.run(); empty: none
    spares: Sequence[SparePlace] = ()  # of an elastic job
    hosts: Sequence[Host] = ()  # all that are named, for an elastic job
    hosts_from: HostsFrom | None = None  # what names them while it runs


class Stage(enum.IntEnum):
    """The progress of an agent, and of the job's start."""

    CALLED = 0
    GREETED = 1  # the agent runs, with this version of ciranda
    READY = 2  # the agent has its orders and is prepared for them
    RUNNING = 3
    OVER = 4


@dataclass
class Agent:
    host: Host
    places: Sequence[Place]
    servers: Sequence[ServerPlace]
    command: Sequence[str]
    here: bool  # true: on this host, without ssh
    pid: int
    outbox: Outbox
    output: int
    errors: int
    heard: float
    stage: Stage = Stage.CALLED
    greeted: bool = False
    said: bytes = b""  # output up to the end of the greeting
    complaints: bytes = b""  # the end of its stderr
    reader: FrameReader = field(default_factory=FrameReader)
    connection: Sequence[str] = ()  # the words of SSH_CONNECTION
    problem: str = ""
    done: bool = False
    roles: Sequence[int] = ()
    spares: Sequence[SparePlace] = ()
    alive: set[int] = field(default_factory=set)  # numbers of its running processes

    @property
    def index(self) -> int:
        places: list[AnyPlace] = [*self.places, *self.spares, *self.servers]
        return places[0].host_index

    @property
    def numbers(self) -> list[int]:
        """The numbers of its processes."""
        ranks = [place.rank for place in self.places]
        servers = [server_number(each.server) for each in self.servers]
        return [*ranks, *(each.number for each in self.spares), *servers, *self.roles]


class HostAgents:
    """The processes of a job on several hosts, see job.Ranks.

    The owner calls start(), turns the loop until news.over() or news.not_started(), then end().
    """

    def __init__(self, task: Task, news: JobNews, loop: EventLoop) -> None:
        self._task = task
        self._news = news
        self._loop = loop
        self._stage = Stage.CALLED  # the stage that all agents have reached
        self._stage_limit = 0.0
        self._agents: list[Agent] = []
        self._rendezvous: dict[int, str] = {}  # by host: where its ranks listen
        self._ranks_left: set[int] = set()  # ranks and coordinator that have not ended
        self._servers_at: list[str] = []  # the servers' endpoints for other hosts
        self._listens: dict[int, Listen] = {}  # by host: where it was told to listen
        self._pulse = 0  # its pid; 0: none
        self._spare = children_before_us()

    def start(self) -> None:
        process_tree.adopt_orphans()
        self._stage_limit = time.monotonic() + ssh.ANSWER_LIMIT_S
        plan = self._task.plan
        self._ranks_left = {each.number for each in plan.processes if trains(each.number)}
        self._servers_at = [""] * len(plan.servers)
        places: list[AnyPlace] = [each.place for each in plan.ranks]
        places += [each.place for each in plan.servers]
        places += self._task.spares
        for index in dict.fromkeys(place.host_index for place in places):
            self._agents.append(self._call([each for each in places if each.host_index == index]))

    def order(self, step: Step) -> None:
        command = _COMMANDS.get(step)
        for agent in self._living():
            if self._stage < Stage.RUNNING or step is Step.GIVE_UP:
                os.kill(agent.pid, signal.SIGKILL)
            elif command is not None:
                agent.outbox.send(frames.frame(frames.ORDER, command))

    def hand_on(self, number: int) -> None:
        if self._stage is Stage.RUNNING:
            command = supervisor.HAND_ON[signal.Signals(number)]
            for agent in self._living():
                agent.outbox.send(frames.frame(frames.ORDER, command))

    def deadline(self) -> float | None:
        if self._stage < Stage.RUNNING:
            return self._stage_limit
        return min((each.heard + _patience_s(each) for each in self._living()), default=None)

    def tick(self, now: float) -> None:
        if self._stage < Stage.RUNNING and now >= self._stage_limit:
            for agent in self._living():
                if agent.stage is self._stage:
                    self._give_up(agent, ssh.no_answer(agent.host))
            self._advance()
        for agent in self._living():
            if self._stage is Stage.RUNNING and self._is_silent(agent, now):
                self._give_up(agent, f"its agent has sent nothing for {_patience_s(agent):g} s")

    def _is_silent(self, agent: Agent, now: float) -> bool:
        """Returns true if the agent's lease is over and none of its output waits to be read.

        Unread output means that this process itself was held up.
        """
        if now < agent.heard + _patience_s(agent):
            return False
        waiting = select.poll()
        waiting.register(agent.output, select.POLLIN)
        return not waiting.poll(0)

    def end(self) -> None:
        self._end_pulse()
        for agent in self._living():
            agent.outbox.close()
        deadline = time.monotonic() + _LEAVE_S
        while self._living() and time.monotonic() < deadline:
            self._loop.turn(deadline - time.monotonic())
        process_tree.kill_descendants(_KILL_LIMIT_S, self._spare)

    def _living(self) -> list[Agent]:
        return [agent for agent in self._agents if agent.stage is not Stage.OVER]

    # Calling an agent

    def _call(self, places: Sequence[AnyPlace]) -> Agent:
        host = places[0].host
        here = host.name == self._task.plan.host and host.user is None
        command = ssh.agent_command(sys.executable if here else self._task.interpreter)
        argv = command if here else _with_path(ssh.ssh_argv(host, command, self._task.ssh_options))
        stdin, commands = os.pipe()
        output, stdout = os.pipe()
        errors, stderr = os.pipe()
        try:
            pid = local.start_program(argv, os.environ, stdin=stdin, stdout=stdout, stderr=stderr)
        finally:
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        outbox = Outbox(commands, self._loop)
        agent = Agent(
            host,
            [each for each in places if isinstance(each, Place)],
            [each for each in places if isinstance(each, ServerPlace)],
            command,
            here,
            pid,
            outbox,
            output,
            errors,
            heard=time.monotonic(),
            spares=[each for each in places if isinstance(each, SparePlace)],
        )
        agent.roles = [each.number for each in self._task.plan.roles if each.place in agent.servers]
        os.set_blocking(errors, False)
        self._loop.watch(output, partial(self._on_output, agent))
        self._loop.watch(errors, partial(self._on_errors, agent))
        return agent

    # Frames of an agent

    def _on_errors(self, agent: Agent, fd: int) -> None:
        chunk = os.read(fd, _READ_BYTES)
        agent.complaints = (agent.complaints + chunk)[-_SAID_BYTES_MAX:]
        if not chunk:
            self._loop.unwatch(fd)
            agent.errors = -1

    def _on_output(self, agent: Agent, fd: int) -> None:
        chunk = os.read(fd, _READ_BYTES)
        agent.heard = time.monotonic()
        if not chunk:
            self._on_end(agent)
            return
        try:
            if not agent.greeted:
                chunk = self._look_for_greeting(agent, chunk)
            for each in agent.reader.feed(chunk):
                if agent.stage is not Stage.OVER:
                    self._on_frame(agent, each)
        except FrameError as error:
            self._give_up(agent, f"its agent sent {error}")

    def _look_for_greeting(self, agent: Agent, chunk: bytes) -> bytes:
        """Consumes a host's login messages and the greeting; returns the bytes behind them."""
        agent.said += chunk
        found = _GREETING.search(agent.said)
        if found is None:
            agent.said = agent.said[-_SAID_BYTES_MAX:]
            return b""
        agent.greeted = True
        rest = agent.said[found.end() :]
        agent.said = agent.said[: found.end()]
        problem = ssh.start_problem(self._answer(agent, 0), agent.command, ciranda.__version__)
        if problem:
            self._give_up(agent, problem)
            return b""
        return rest

    def _on_frame(self, agent: Agent, said: Frame) -> None:
        kind, payload = said
        if kind in _OF_RANKS and agent.stage < Stage.RUNNING:
            raise FrameError("a message about ranks before they were started")
        if kind == frames.HELLO:
            _check_turn(agent, Stage.CALLED)
            agent.connection = str(frames.read_json(payload).get("ssh", "")).split()
            self._come(agent, Stage.GREETED)
        elif kind == frames.READY:
            _check_turn(agent, Stage.GREETED)
            self._take_endpoints(agent, frames.read_json(payload))
            self._come(agent, Stage.READY)
        elif kind == frames.NEWS:
            self._take_news(agent, payload)
        elif kind in frames.OUTPUT:
            rank, chunk = self._rank_of(agent, payload)
            self._news.printed(rank, frames.OUTPUT.index(kind) + 1, chunk)
        elif kind == frames.REPORT:
            self._store_report(*self._rank_of(agent, payload))
        elif kind == frames.OUTCOME and self._task.call_folder:
            rank, chunk = self._rank_of(agent, payload)
            call_files.take(call_files.outcome_file(self._task.call_folder, rank), chunk)
        elif kind == frames.PROBLEM:
            agent.problem = ssh.fit_for_sentence(
                payload[:_SAID_BYTES_MAX].decode("utf-8", "replace")
            )

    def _take_endpoints(self, agent: Agent, ready: Mapping[str, object]) -> None:
        """Stores the agent's endpoints. Raises FrameError for one that it was not told to open."""
        rendezvous, servers = ready.get("rendezvous"), ready.get("servers")
        own = {str(each.server) for each in agent.servers}
        if not isinstance(servers, dict) or not own.issuperset(servers):
            raise FrameError("servers that it does not have")
        told = [*servers.values(), *([rendezvous] if rendezvous else [])]
        if told and agent.index not in self._listens:
            raise FrameError("an endpoint that it was not told to open")
        try:
            for endpoint in told:
                parse_endpoint(str(endpoint), "its agent")
        except LaunchError:
            raise FrameError("an endpoint that is not an address") from None
        if rendezvous:
            self._rendezvous[agent.index] = str(rendezvous)
        for server, where in servers.items():
            self._servers_at[int(server)] = where

    def _take_news(self, agent: Agent, payload: bytes) -> None:
        word, numbers = frames.read_news(payload)
        if word in ("start", "exit", "again", "late", "fail"):
            number = numbers[0]
            if number not in self._numbers_of(agent) or (number in agent.alive) is not (
                word in ("exit", "again", "late")
            ):
                raise FrameError(f"an impossible event of rank {number}")
            agent.alive ^= set() if word in ("late", "fail") else {number}
        agent.done = agent.done or word == "done"
        tell(payload.decode(), self._news)
        if word in ("exit", "fail"):
            self._end_servers_after({numbers[0]})

    def _rank_of(self, agent: Agent, payload: bytes) -> tuple[int, bytes]:
        rank, content = frames.read_rank(payload)
        if rank not in self._numbers_of(agent):
            raise FrameError(f"a message about rank {rank}, which is not on its host")
        return rank, content

    def _numbers_of(self, agent: Agent) -> Collection[int]:
        """Returns the numbers of the processes that the agent may speak of."""
        return agent.numbers

    def _store_report(self, rank: int, content: bytes) -> None:
        """Writes an error file beside the logs, where ranks of this host write theirs."""
        with (
            contextlib.suppress(OSError),
            open(self._task.plan.paths.error_file(rank), "wb") as file,
        ):
            file.write(content)

    # The start: all agents take each step together

    def _come(self, agent: Agent, stage: Stage) -> None:
        agent.stage = stage
        self._advance()

    def _advance(self) -> None:
        """Takes the next step when every agent has reached the next stage or has failed."""
        if self._stage >= Stage.RUNNING:
            return
        if any(agent.stage is self._stage for agent in self._agents):
            return
        problems = [agent.problem for agent in self._agents if agent.problem]
        if not problems and self._stage is Stage.CALLED:
            problems = self._send_orders()
        if problems:
            self._stage = Stage.OVER
            self._news.not_started(problems)
        elif self._stage is Stage.CALLED:
            self._stage = Stage.GREETED
            self._stage_limit = time.monotonic() + ssh.ANSWER_LIMIT_S + self._call_limit_s()
        else:
            self._go()

    def _send_orders(self) -> list[str]:
        for agent in self._who_listens() if self._task.key else ():
            if problem := self._choose_listen(agent):
                return [problem]
        for agent in self._agents:
            self._send_orders_to(agent)
        return []

    def _choose_listen(self, agent: Agent) -> str:
        """Chooses where the agent listens for other hosts. Returns a problem, or nothing."""
        task = self._task
        address = "" if task.nic else self._address_of(agent)
        if not task.nic and not address:
            return (
                f"{agent.host.destination}: ssh does not tell by which address other hosts reach "
                "it; name its interface or network with --nic"
            )
        self._listens[agent.index] = Listen(address, task.nic, task.ports)
        return ""

    def _send_orders_to(self, agent: Agent) -> None:
        task, plan = self._task, self._task.plan
        orders = Orders(
            argv=self._argv_at(agent),
            folder=task.folder,
            places=agent.places,
            size=plan.size,
            job_id=plan.paths.job_id,
            environment=task.environment,
            user=task.user,
            columns=task.columns,
            meets=bool(task.key),
            listen=self._listens.get(agent.index),
            servers=agent.servers,
            server_files=plan.server_files,
            restarts=plan.restarts,
            roles=[each.number for each in plan.roles],
            horovod_names=task.horovod_names,
            calls=bool(task.call_folder),
            elastic=plan.elastic,
            spares=self._spares_of(agent),
        )
        agent.outbox.send(frames.json_frame(frames.PLAN, encode_orders(orders)))
        if task.key:
            agent.outbox.send(frames.frame(frames.KEY, task.key))
        if task.call_folder:
            for chunk in call_files.chunks_of(call_files.call_file(task.call_folder)):
                agent.outbox.send(frames.frame(frames.CALL, chunk))

    def _spares_of(self, agent: Agent) -> Sequence[SparePlace]:
        """Returns the places of the processes, besides its ranks, that the agent may start."""
        return agent.spares

    def _who_listens(self) -> Sequence[Agent]:
        """Returns the hosts with servers, or, in a job without servers, that of rank 0."""
        return [each for each in self._agents if each.servers] or self._agents[:1]

    def _call_limit_s(self) -> float:
        """Returns the seconds that the call file may take on its way to all hosts."""
        folder = self._task.call_folder
        size_bytes = os.path.getsize(call_files.call_file(folder)) if folder else 0
        return size_bytes * len(self._agents) / _SLOW_BYTES_PER_S

    def _argv_at(self, agent: Agent) -> Sequence[str]:
        program, *arguments = self._task.plan.ranks[0].argv
        if program == sys.executable:  # the program is a script or a module
            program = agent.command[0]
        return (program, *arguments)

    def _address_of(self, agent: Agent) -> str:
        """Returns the address of the agent's host for other hosts; empty if unknown.

        It is the address at which ssh reached the host, or from which ssh reached another one.
        """
        ways = [each.connection[0:1] for each in self._agents if not each.here]
        if not agent.here:
            ways = [agent.connection[2:3]]
        return next((way[0] for way in ways if way and "%" not in way[0]), "")

    def _go(self) -> None:
        self._stage = Stage.RUNNING
        self._let_go(self._agents)

    def _let_go(self, agents: Sequence[Agent]) -> None:
        for agent in agents:
            agent.stage = Stage.RUNNING
            go = {"rendezvous": self._rendezvous.get(0, ""), "servers": self._servers_at}
            agent.outbox.send(frames.json_frame(frames.GO, go))
        self._renew_pulse()

    def _renew_pulse(self) -> None:
        """Has beats sent to all running agents, and to no other.

        The pulse keeps pipes open, so that an agent that is given up would see no end of its own.
        """
        self._end_pulse()
        running = [agent.outbox.fd for agent in self._living() if agent.stage is Stage.RUNNING]
        self._pulse = fork_pulse(running)

    def _end_pulse(self) -> None:
        if self._pulse:
            os.kill(self._pulse, signal.SIGKILL)
            os.waitpid(self._pulse, 0)
            self._pulse = 0

    def _end_servers_after(self, ended: set[int]) -> None:
        """Notes ended processes. After the last rank of all hosts it ends the servers."""
        had_ranks = bool(self._ranks_left)
        self._ranks_left -= ended
        if had_ranks and not self._ranks_left:
            for agent in self._living():
                agent.outbox.send(frames.frame(frames.ORDER, supervisor.END_SERVERS))

    # The end of an agent

    def _give_up(self, agent: Agent, problem: str) -> None:
        agent.problem = agent.problem or problem
        os.kill(agent.pid, signal.SIGKILL)
        self._on_end(agent)
        if self._pulse:
            self._renew_pulse()

    def _on_end(self, agent: Agent) -> None:
        if agent.stage is Stage.OVER:
            return
        stage = agent.stage
        code = self._close(agent)
        if self._stage < Stage.RUNNING:
            agent.problem = self._start_problem(agent, stage, code)
            self._advance()
        elif self._stage is Stage.RUNNING:
            self._end_servers_after(set(agent.numbers))
            if not agent.done:
                self._news.host_lost(agent.index, agent.problem or self._end_words(agent, code))
            self._end_if_alone()

    def _end_if_alone(self) -> None:
        if not self._living():
            self._news.over()

    def _close(self, agent: Agent) -> int:
        """Closes all that belongs to an agent. Returns its exit code."""
        agent.stage = Stage.OVER
        with contextlib.suppress(BlockingIOError):
            while agent.errors >= 0:
                self._on_errors(agent, agent.errors)
        self._loop.unwatch(agent.output)
        if agent.errors >= 0:
            self._loop.unwatch(agent.errors)
        agent.outbox.close()
        return local.exit_code_of(agent.pid, _KILL_LIMIT_S)

    def _start_problem(self, agent: Agent, stage: Stage, code: int) -> str:
        if agent.problem:
            named = agent.problem.startswith(f"{agent.host.destination}: ")
            return agent.problem if named else f"{agent.host.destination}: {agent.problem}"
        if stage is Stage.CALLED:
            problem = ssh.start_problem(
                self._answer(agent, code), agent.command, ciranda.__version__
            )
            if problem:
                return problem
        return f"{agent.host.destination}: {self._end_words(agent, code)}"

    def _answer(self, agent: Agent, code: int) -> ssh.Answer:
        return ssh.Answer(
            agent.host,
            code,
            agent.said.decode("utf-8", "replace"),
            agent.complaints.decode("utf-8", "replace"),
        )

    def _end_words(self, agent: Agent, code: int) -> str:
        said = ssh.last_line(self._answer(agent, code))
        words = f"its agent ended ({signal_words(-code) if code < 0 else f'exit code {code}'})"
        if not agent.here and code == ssh.EXIT_SSH_FAILED:
            words = "its agent was killed, or the connection to it broke"
        return f"{words}: {said}" if said else words


def _patience_s(agent: Agent) -> float:
    """Returns how long an agent may be silent: one that is called has first to be reached."""
    return LEASE_S if agent.stage is Stage.RUNNING else ssh.ANSWER_LIMIT_S


def _check_turn(agent: Agent, stage: Stage) -> None:
    if agent.stage is not stage:
        raise FrameError("a greeting out of turn")


def _with_path(argv: Sequence[str]) -> Sequence[str]:
    program = shutil.which(argv[0])
    if program is None:
        raise LaunchError(
            "other hosts need the program ssh, which is not on PATH; install OpenSSH's client",
            EXIT_NOT_FOUND,
        )
    return (program, *argv[1:])
