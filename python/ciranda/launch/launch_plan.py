"""Options and environment -> who runs what with which environment. Pure; --dry-run prints it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ciranda.compat import python_path
from ciranda.launch import hosts as host_list
from ciranda.launch.environment import (
    HERE,
    LIFE,
    RENDEZVOUS,
    SERVERS,
    JobPlaces,
    default_environment,
    identity_names,
    job_environment,
    rank_environment,
    server_environment,
    without_identity,
)
from ciranda.launch.errors import LaunchError
from ciranda.launch.hosts import Host, HostSource, Place
from ciranda.launch.meeting import Meeting, parse_endpoint
from ciranda.launch.processes import is_server, name_of, server_number

_PATH = "PYTHONPATH"


@dataclass(frozen=True)
class RankPlan:
    place: Place
    argv: tuple[str, ...]
    environment: Mapping[str, str]  # complete: what execve gets
    shown: Mapping[str, str]  # the launcher's part of it; a user's values may be secret

    @property
    def rank(self) -> int:
        return self.place.rank

    number = rank  # among the job's processes, see processes


@dataclass(frozen=True)
class ServerPlan:
    """A parameter server, on this host."""

    server: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    shown: Mapping[str, str]

    @property
    def number(self) -> int:
        return server_number(self.server)


@dataclass(frozen=True)
class LaunchPlan:
    ranks: tuple[RankPlan, ...]  # all of the job, or those of one host
    size: int  # of the job
    host: str  # this one
    cores: int  # of this one
    places: JobPlaces
    user_names: tuple[str, ...]  # set by -x and --env-file
    meeting: Meeting | None = None  # of the hosts, where there are several
    servers: tuple[ServerPlan, ...] = ()
    restarts: int = 0  # of ranks that were killed

    @property
    def processes(self) -> tuple[RankPlan | ServerPlan, ...]:
        """What is started here, in this order: workers look for their servers."""
        return (*self.servers, *self.ranks)

    @property
    def host_count(self) -> int:
        return self.ranks[0].place.host_count

    def host_of(self, number: int) -> str:
        """Where a process of this plan runs, as the user named it."""
        rank = self.ranks[0].rank if is_server(number) else number
        return self.ranks[rank - self.ranks[0].rank].place.host.destination


def choose_places(
    np: int | None, named: HostSource | None, *, cores: int, host: str
) -> tuple[Place, ...]:
    """One for each rank: -np of them, else as many as slots were named, else as cores are here."""
    if named is not None:
        hosts = host_list.gather_here(named.hosts, host)
        return host_list.assign_ranks(hosts, np, named.words)
    size = cores if np is None else np
    host_list.check_local_size(size)
    return host_list.assign_ranks([Host(host, slots=size)], size)


def needs_agents(ranks: Sequence[Place], host: str) -> bool:
    """Whether a rank has its place on another host than this, or is another user's."""
    return any(place.host.name != host or place.host.user is not None for place in ranks)


def parse_ranks(text: str, size: int) -> frozenset[int]:
    """Ranks in `0,3` or `0-3,6`."""
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise LaunchError(f"--show-ranks {text}: expected ranks such as 0,3 or 0-3")
        highest = int(last if dash else first)
        if highest >= size:
            raise LaunchError(
                f"--show-ranks {text}: there is no rank {highest}, only 0 to {size - 1}"
            )
        ranks.update(range(int(first), highest + 1))
    return frozenset(ranks)


def plan_launch(
    argv: Sequence[str],
    *,
    ranks: Sequence[Place],
    size: int,
    cores: int,
    host: str,
    places: JobPlaces,
    inherited: Mapping[str, str],
    user: Mapping[str, str],
    columns: int | None = None,
    meeting: Meeting | None = None,
    servers: int = 0,
    server_program: str = "",
    restarts: int = 0,
    horovod_names: bool = False,
) -> LaunchPlan:
    """Later wins: what is inherited, the launcher's, the user's.

    `ranks`: those to plan of the job's `size`; `host`: this one, as it is called in their places.
    `servers`: how many of `server_program` serve them, on this host. `horovod_names`: they find
    ciranda under the name of horovod too.
    """
    inherited = without_identity(inherited)
    set_already = {**inherited, **user}
    rendezvous = None if meeting is None else meeting.endpoint
    job = job_environment(places, size=size, master=_master(ranks, meeting), rendezvous=rendezvous)
    if servers:
        job |= {SERVERS: ",".join([HERE] * servers), LIFE: "1"}
    plans = []
    for place in ranks:
        known_cores = cores if place.host.name == host else None
        defaults = default_environment(
            cores=known_cores,
            local_size=place.local_size,
            one_host=place.host_count == 1,
            columns=columns,
        )
        ours = {name: text for name, text in defaults.items() if name not in set_already}
        ours |= {**job, **rank_environment(places, place)}
        shown = {name: text for name, text in ours.items() if name not in user}
        complete = {**inherited, **ours, **user}
        if horovod_names:
            complete[_PATH] = python_path(set_already.get(_PATH))
            shown |= {} if _PATH in user else {_PATH: complete[_PATH]}
        plans.append(RankPlan(place, tuple(argv), complete, shown))
    serving = []
    plain = {name: text for name, text in inherited.items() if name not in identity_names()}
    for server in range(servers):
        shown = server_environment(places)
        told = {"--workers": size, "--servers": servers, "--server": server}
        arguments = [text for name, number in told.items() for text in (name, str(number))]
        serving.append(ServerPlan(server, (server_program, *arguments), {**plain, **shown}, shown))
    return LaunchPlan(
        tuple(plans),
        size,
        host,
        cores,
        places,
        tuple(sorted(user)),
        meeting,
        tuple(serving),
        restarts,
    )


def _master(ranks: Sequence[Place], meeting: Meeting | None) -> str:
    if meeting is not None:
        return parse_endpoint(meeting.endpoint, RENDEZVOUS)[0]
    return "127.0.0.1" if ranks[0].host_count == 1 else ranks[0].host.name


def describe(plan: LaunchPlan, *, by_agents: bool) -> str:
    """The plan as text for --dry-run. Values the user set are not shown: they may be secret."""
    command = shlex.join(plan.ranks[0].argv)
    table = [("rank", "host", "local rank", "stdin", "command")]
    for rank in plan.ranks:
        place = rank.place
        local = f"{place.local_rank} of {place.local_size}"
        stdin = "yours" if place.rank == 0 and not by_agents else "/dev/null"
        table.append((str(place.rank), place.host.destination, local, stdin, command))
    for server in plan.servers:
        program = shlex.join(server.argv)
        table.append((name_of(server.number), plan.host, "", "/dev/null", program))
    shared = set.intersection(*(set(rank.shown.items()) for rank in plan.ranks))
    lines = [f"{_size_words(plan)}; nothing was started", "", *_aligned(table)]
    lines += ["", "set for every rank:"]
    if by_agents and plan.host_count > 1:
        shared.add((RENDEZVOUS, "<chosen by the first agent>"))
    lines += [f"  {name}={text}" for name, text in sorted(shared)]
    lines += [f"  {name}  (yours; the value is not shown)" for name in plan.user_names]
    for rank in plan.ranks:
        own = sorted(set(rank.shown.items()) - shared)
        if own:
            lines += ["", f"set for rank {rank.rank}:"]
            lines += [f"  {name}={text}" for name, text in own]
    for server in plan.servers:
        lines += ["", f"set for {name_of(server.number)}:"]
        lines += [f"  {name}={text}" for name, text in sorted(server.shown.items())]
    return "\n".join(lines)


def _size_words(plan: LaunchPlan) -> str:
    ranks = "1 rank" if plan.size == 1 else f"{plan.size} ranks"
    if plan.servers:
        count = len(plan.servers)
        ranks += " and 1 parameter server" if count == 1 else f" and {count} parameter servers"
    if plan.host_count > 1:
        return f"{ranks} on {plan.host_count} hosts"
    host = plan.ranks[0].place.host
    cores = f" ({plan.cores} cores available)" if host.name == plan.host else ""
    return f"{ranks} on {host.destination}{cores}"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
