"""Runs the processes of an elastic job on several hosts, through an agent on each."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.hosts import Host, SparePlace
from ciranda.launch.remote import frames
from ciranda.launch.remote.discovery import Discovery
from ciranda.launch.remote.frames import Frame, FrameError
from ciranda.launch.remote.host_agents import Agent, HostAgents, Stage, Task
from ciranda.launch.run.elastic_ranks import ElasticRanks, HostAt, MemberNews
from ciranda.launch.run.event_loop import EventLoop
from ciranda.launch.run.job import ElasticNews


def run_elastic(task: Task, news: ElasticNews, loop: EventLoop) -> ElasticRanks:
    """Returns the processes of an elastic job, see job.StartRanks."""
    limits = task.plan.elastic
    assert limits is not None  # noqa: S101 - the caller looks
    return ElasticRanks(task.plan, limits, news, loop, make_members=partial(ElasticAgents, task))


class ElasticAgents(HostAgents):
    """The processes of an elastic job on several hosts, see elastic_ranks.Members.

    Its agents start single processes, and pass on what these and the arbiter say to each other. A
    host whose agent is silent for a lease is lost. The agent, which hears nothing from here either,
    has ended its processes by then or does so in its own time: they cannot go on by themselves.
    A host leaves when its agent gets SIGTERM, or when it is named no more: its agent ends after its
    last process.

    A host that was lost or has left is called again after a while, which doubles each time. So is
    one without ranks at the start, or that is named later. When its agent is ready, the arbiter
    starts processes there.
    """

    def __init__(self, task: Task, news: MemberNews, loop: EventLoop) -> None:
        super().__init__(task, news, loop)
        self._of_members = news
        self._incarnations: dict[int, Agent] = {}
        self._started_by: dict[int, Agent] = {}  # number -> the agent of its latest process
        limits = task.plan.elastic
        assert limits is not None  # noqa: S101 - by run_elastic()
        self._limits = limits
        self._hosts = list(task.hosts)  # by index, also those that are named no more
        self._unnamed: set[int] = set()  # those
        self._discovery: Discovery | None = None
        self._cooldowns_s: dict[int, float] = {}  # of hosts that were gone: before the next call
        self._calls: dict[int, float] = {}  # hosts that are not there -> when to call them
        self._leaving: set[int] = set()  # hosts that are to be empty soon
        self._ends = False

    # Orders of the arbiter

    def start_member(self, number: int, incarnation: int, host_index: int) -> None:
        agent = self._agent_on(host_index)
        self._incarnations[incarnation] = agent
        self._started_by[number] = agent
        agent.outbox.send(frames.start_frame(number, incarnation))

    def kill_one(self, number: int) -> None:
        agent = self._started_by[number]
        agent.outbox.send(frames.rank_frame(frames.STOP, number, b""))

    def say(self, incarnation: int, message: bytes) -> None:
        agent = self._incarnations[incarnation]
        agent.outbox.send(frames.rank_frame(frames.MEMBER, incarnation, message))

    def give_up(self, host_index: int, why: str) -> None:
        for agent in [each for each in self._living() if each.index == host_index]:
            self._give_up(agent, why)

    def settle(self, number: int) -> None:
        """Does nothing: the agent sends all that a process has said before its end."""

    def finish(self) -> None:
        self._ends = True
        self._calls.clear()
        for agent in self._living():
            if agent.stage is Stage.RUNNING:
                agent.outbox.send(frames.frame(frames.FINISH))
            else:
                self._give_up(agent, "")
        self._end_if_alone()

    def _agent_on(self, host_index: int) -> Agent:
        return next(each for each in self._agents if each.index == host_index)

    # What the agents say

    def _on_frame(self, agent: Agent, said: Frame) -> None:
        kind, payload = said
        if kind == frames.MEMBER:
            incarnation, message = frames.read_rank(payload)
            if self._incarnations.get(incarnation) is not agent:
                raise FrameError(f"a message of process {incarnation}, which is not on its host")
            self._of_members.heard(incarnation, message)
        elif kind == frames.BEAT and agent.stage is Stage.RUNNING:
            self._of_members.host_beats(agent.index)
        elif kind == frames.LEAVING and agent.stage is Stage.RUNNING:
            self._leave(agent, "its agent got SIGTERM")
        elif kind not in frames.OUTPUT or self._may_show(agent, *frames.read_rank(payload)):
            super()._on_frame(agent, said)

    def _may_show(self, agent: Agent, number: int, chunk: bytes) -> bool:
        """Returns False for the end of a number's output with which another process may go on."""
        if chunk:
            return True
        owner = self._started_by.get(number)
        return self._ends and owner is agent

    def _numbers_of(self, agent: Agent) -> Collection[int]:
        return [number for number, each in self._started_by.items() if each is agent]

    # Hosts that leave

    def _leave(self, agent: Agent, why: str) -> None:
        if agent.index in self._leaving or self._ends:
            return
        self._leaving.add(agent.index)
        self._of_members.host_leaves(agent.index, why)
        self._finish_if_left(agent)

    def _take_news(self, agent: Agent, payload: bytes) -> None:
        super()._take_news(agent, payload)
        self._finish_if_left(agent)

    def _finish_if_left(self, agent: Agent) -> None:
        """Ends the agent of a host that leaves, once nothing runs there."""
        if agent.index in self._leaving and not agent.alive and not agent.done:
            agent.outbox.send(frames.frame(frames.FINISH))

    # The start

    def _who_listens(self) -> Sequence[Agent]:
        """Returns all agents: rank 0 may be on any host."""
        return self._agents

    def _spares_of(self, agent: Agent) -> Sequence[SparePlace]:
        """Returns a place for each process: whichever may be started on this host."""
        own = [place.rank for place in agent.places]
        others = [number for number in range(self._limits.processes) if number not in own]
        return [self._place(number, agent.host, agent.index) for number in others]

    def _place(self, number: int, host: Host, index: int) -> SparePlace:
        last = self._task.plan.ranks[-1].place
        return SparePlace(number, replace(last, host=host), index)

    def _go(self) -> None:
        super()._go()
        now = time.monotonic()
        self._calls = {index: now for index in range(len(self._agents), len(self._hosts))}
        if self._task.hosts_from is not None:
            self._discovery = Discovery(
                self._task.hosts_from,
                self._task.plan.host,
                self._loop,
                named=self._take_hosts,
                said=self._of_members.said,
            )
        self._of_members.may_start([self._host_at(agent) for agent in self._agents])

    def _host_at(self, agent: Agent) -> HostAt:
        meet_at = self._rendezvous.get(agent.index, "")
        return HostAt(agent.index, self._hosts[agent.index], meet_at)

    # Hosts that come, or come back

    def deadline(self) -> float | None:
        first = super().deadline()
        looks = [] if self._discovery is None or self._ends else [self._discovery.deadline()]
        firsts = [*self._calls.values(), *looks, *([] if first is None else [first])]
        return min(firsts, default=None)

    def tick(self, now: float) -> None:
        super().tick(now)
        if self._discovery is not None and not self._ends:
            self._discovery.tick(now)
        for index in [index for index, at in self._calls.items() if at <= now]:
            del self._calls[index]
            self._call_host(index)

    def end(self) -> None:
        if self._discovery is not None:
            self._discovery.end()
        super().end()

    def _take_hosts(self, hosts: Sequence[Host]) -> None:
        """Calls hosts that are named for the first time, or again, and empties the others."""
        if self._ends:
            return
        names = {(each.name, each.user): each for each in hosts}
        known = {(each.name, each.user): index for index, each in enumerate(self._hosts)}
        for name, host in names.items():
            index = known.get(name, len(self._hosts))
            if name not in known:
                self._hosts.append(host)
            if name not in known or index in self._unnamed:
                self._unnamed.discard(index)
                self._cooldowns_s.pop(index, None)
                if all(each.index != index for each in self._living()):
                    self._calls[index] = time.monotonic()
        for name, index in known.items():
            if name not in names and index not in self._unnamed:
                self._unnamed.add(index)
                self._calls.pop(index, None)
                self._empty(index)

    def _empty(self, index: int) -> None:
        for agent in [each for each in self._living() if each.index == index]:
            if agent.stage is Stage.RUNNING:
                self._leave(agent, "it is named no more")
            else:
                self._give_up(agent, "")

    def _on_end(self, agent: Agent) -> None:
        if agent.stage is Stage.OVER:
            return
        has_gone = agent.index in self._leaving or not agent.done
        self._leaving.discard(agent.index)
        may_call = self._stage is Stage.RUNNING and agent.index not in self._unnamed
        if may_call and has_gone and not self._ends:
            self._call_later(agent.index)
        if self._stage is Stage.RUNNING and agent.stage is not Stage.RUNNING:
            self._close(agent)  # its host has not come
            self._end_if_alone()
        else:
            super()._on_end(agent)

    def _end_if_alone(self) -> None:
        if not self._calls and (self._discovery is None or self._ends):
            super()._end_if_alone()

    def _call_later(self, index: int) -> None:
        cooldown_s = self._cooldowns_s.get(index, self._limits.cooldown_s)
        self._cooldowns_s[index] = min(2 * cooldown_s, self._limits.cooldown_max_s)
        self._calls[index] = time.monotonic() + cooldown_s

    def _call_host(self, index: int) -> None:
        before = [each for each in self._agents if each.index == index]
        places = before[0].places if before else ()
        host = self._hosts[index]
        try:
            agent = self._call([*places, self._place(self._limits.np, host, index)])
        except (LaunchError, OSError):  # of this host: ssh, or a descriptor, is missing just now
            self._call_later(index)
        else:
            self._agents = [each for each in self._agents if each.index != index] + [agent]

    def _come(self, agent: Agent, stage: Stage) -> None:
        if self._stage is not Stage.RUNNING:
            super()._come(agent, stage)
            return
        agent.stage = stage
        if stage is Stage.GREETED and (problem := self._choose_listen(agent)):
            self._give_up(agent, problem)
        elif stage is Stage.GREETED:
            self._send_orders_to(agent)
        else:
            self._let_go([agent])
            self._of_members.host_came(self._host_at(agent))

    def _end_servers_after(self, ended: set[int]) -> None:
        """Does nothing: there are no servers, and a process that has ended may come again."""
