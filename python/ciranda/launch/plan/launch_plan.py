"""Plans each process of a job: its host, command and environment. Pure; --dry-run prints it."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ciranda.compat import python_path
from ciranda.launch.errors import LaunchError
from ciranda.launch.plan import hosts as host_list
from ciranda.launch.plan.elastic import ElasticLimits
from ciranda.launch.plan.environment import (
    COORDINATES,
    EVALUATED,
    LIFE,
    RENDEZVOUS,
    SERVERS,
    TLS,
    TRUSTED_NETWORK,
    JobPaths,
    coordinator_environment,
    default_environment,
    identity_names,
    job_environment,
    rank_environment,
    server_environment,
    without_identity,
)
from ciranda.launch.plan.hosts import (
    NO_SERVER_FILES,
    Host,
    HostSource,
    Place,
    ServerFiles,
    ServerPlace,
    SparePlace,
)
from ciranda.launch.plan.processes import COORDINATOR, name_of, server_number
from ciranda.launch.remote.meeting import Meeting, parse_endpoint

_PATH = "PYTHONPATH"
# Maps a variable of the ranks to the option that tells servers the same.
_PROTECTION = {TLS: "--tls", TRUSTED_NETWORK: "--trusted-network"}


@dataclass(frozen=True)
class RankPlan:
    place: Place
    argv: tuple[str, ...]
    environment: Mapping[str, str]  # complete: what execve gets
    shown: Mapping[str, str]  # the launcher's part of it, since a user's values may be secret
    spare: int | None = None  # its number, if it is a spare of an elastic job; None: a rank

    may_come_back = True

    @property
    def rank(self) -> int:
        return self.place.rank

    @property
    def number(self) -> int:
        """The number among the job's processes, see processes.py."""
        return self.rank if self.spare is None else self.spare


@dataclass(frozen=True)
class ServerPlan:
    place: ServerPlace
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    shown: Mapping[str, str]

    may_come_back: bool = False  # true if it keeps its state

    @property
    def number(self) -> int:
        return server_number(self.place.server)


@dataclass(frozen=True)
class RolePlan:
    """The coordinator or the evaluator: one more process of the ranks' program. It runs on the host
    of server 0, which completes checkpoints and gives out tasks."""

    number: int  # COORDINATOR or EVALUATOR
    place: ServerPlace
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    shown: Mapping[str, str]

    may_come_back = True


ProcessPlan = RankPlan | ServerPlan | RolePlan


@dataclass(frozen=True)
class LaunchPlan:
    ranks: tuple[RankPlan, ...]  # all ranks of the job, or those of one host
    size: int  # ranks of the job
    host: str  # name of this host
    cores: int  # cores of this host
    paths: JobPaths
    user_names: tuple[str, ...]  # variables that -x, --env-file and other options set
    meeting: Meeting | None = None  # how processes here meet those of other hosts
    servers: tuple[ServerPlan, ...] = ()
    restarts: int = 0  # how many times killed processes are started again on each host
    min_np: int | None = None  # so many workers of servers are enough to go on; None: no servers
    server_files: ServerFiles = NO_SERVER_FILES
    servers_stay: bool = False  # true: servers run until END_SERVERS, for ranks of other hosts
    roles: tuple[RolePlan, ...] = ()
    elastic: ElasticLimits | None = None  # None: a lost rank ends the job
    spares: tuple[RankPlan, ...] = ()

    @property
    def processes(self) -> tuple[ProcessPlan, ...]:
        """The processes in the order of their start: servers first, as workers look for them."""
        return (*self.servers, *self.ranks, *self.spares, *self.roles)

    @property
    def host_count(self) -> int:
        of_spares = [each.place.host_index + 1 for each in self.spares]
        return max([self.ranks[0].place.host_count, *of_spares])

    def moved(self, number: int, host: Host) -> LaunchPlan:
        """Returns the plan with a rank or spare on another host."""

        def placed(each: RankPlan) -> RankPlan:
            is_it = each.number == number and each.place.host != host
            return replace(each, place=replace(each.place, host=host)) if is_it else each

        return replace(
            self, ranks=tuple(map(placed, self.ranks)), spares=tuple(map(placed, self.spares))
        )

    def host_of(self, number: int) -> str:
        """Returns the host of a process of this plan, as an argument of ssh."""
        place = next(each.place for each in self.processes if each.number == number)
        return place.host.destination


def choose_places(
    np: int | None, named: HostSource | None, *, cores: int, host: str
) -> tuple[Place, ...]:
    """Returns a place for each of `np` ranks (default: the named slots, or the cores here)."""
    if named is not None:
        hosts = host_list.gather_here(named.hosts, host)
        return host_list.assign_ranks(hosts, np, named.words)
    size = cores if np is None else np
    host_list.check_local_size(size)
    return host_list.assign_ranks([Host(host, slots=size)], size)


def has_other_hosts(hosts: Sequence[Host], host: str) -> bool:
    """Returns true if one of `hosts` is another host than `host`, or is reached as another user."""
    return any(each.name != host or each.user is not None for each in hosts)


def parse_ranks(text: str, size: int) -> frozenset[int]:
    """Parses ranks such as `0,3` or `0-3,6`."""
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
    paths: JobPaths,
    inherited: Mapping[str, str],
    user: Mapping[str, str],
    columns: int | None = None,
    meeting: Meeting | None = None,
    servers: Sequence[ServerPlace] = (),
    servers_at: Sequence[str] = (),
    servers_stay: bool = False,
    server_program: str = "",
    server_files: ServerFiles = NO_SERVER_FILES,
    restarts: int = 0,
    min_np: int | None = None,
    horovod_names: bool = False,
    roles: Sequence[int] = (),
    elastic: ElasticLimits | None = None,
    spares: Sequence[SparePlace] = (),
) -> LaunchPlan:
    """Plans processes. The launcher's variables override inherited ones, the user's override both.

    `ranks` are the ranks to plan, of `size` in the job. `host` is the name of this host in places.
    `servers` are the servers to plan, which run `server_program`. `servers_at` has the address of
    each server of the job for the ranks here. `horovod_names`: ranks can import ciranda as horovod
    too. `min_np`: so many workers of servers are enough. `roles`: COORDINATOR and EVALUATOR, if the
    job has them. `elastic`: how the number of ranks may change; None: it does not change.
    `spares`: those of an elastic job to plan.
    """
    inherited = without_identity(inherited)
    set_already = {**inherited, **user}
    rendezvous = meeting.endpoint if meeting is not None and meeting.endpoint else None
    master = _master(ranks, rendezvous) if ranks else ""
    job = job_environment(paths, size=size, master=master, rendezvous=rendezvous)
    if servers_at:
        job |= {SERVERS: ",".join(servers_at), LIFE: "1"}

    def environments(
        of: Mapping[str, str], told: Mapping[str, str], on: Host, *, sharing: int, one_host: bool
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Returns a process's environment, and the launcher's part of it. The process inherits `of`
        and alone gets `told`. `sharing` processes share the cores of the host `on`."""
        known_cores = cores if on.name == host else None
        defaults = default_environment(
            cores=known_cores, local_size=sharing, one_host=one_host, columns=columns
        )
        ours = {name: text for name, text in defaults.items() if name not in set_already}
        ours |= told
        shown = {name: text for name, text in ours.items() if name not in user}
        complete = {**of, **ours, **user}
        if horovod_names:
            complete[_PATH] = python_path(set_already.get(_PATH))
            shown |= {} if _PATH in user else {_PATH: complete[_PATH]}
        return complete, shown

    def plan_rank(place: Place, spare: SparePlace | None = None) -> RankPlan:
        number = place.rank if spare is None else spare.number
        made = environments(
            inherited,
            {**job, **rank_environment(paths, place, number)},
            place.host,
            sharing=place.local_size,
            one_host=place.host_count == 1,
        )
        if spare is None:
            return RankPlan(place, tuple(argv), *made)
        own = replace(place, host_index=spare.host_index)
        return RankPlan(own, tuple(argv), *made, spare.number)

    serving = []
    plain = {name: text for name, text in inherited.items() if name not in identity_names()}
    playing = []
    of_servers_0 = [each for each in servers if each.server == 0]  # empty if it is on another host
    for role, server in itertools.product(roles, of_servers_0):
        beside = sum(each.host.name == server.host.name for each in ranks)
        told_it = {EVALUATED: server_files.checkpoints or ""}
        if role == COORDINATOR:
            told_it = {**job, **coordinator_environment(paths), COORDINATES: "1"}
        made = environments(plain, told_it, server.host, sharing=max(1, beside), one_host=False)
        playing.append(RolePlan(role, server, tuple(argv), *made))
    protection = [flag for name, flag in _PROTECTION.items() if set_already.get(name) == "1"]
    for server in servers:
        shown = server_environment(paths)
        told: dict[str, object] = {
            "--workers": size,
            "--servers": len(servers_at),
            "--server": server.server,
        }
        if server_files.state is not None:
            told["--dir"] = os.path.join(server_files.state, f"server-{server.server}")
            told["--durability"] = server_files.durability
        told["--checkpoint-dir"] = server_files.checkpoints
        told["--checkpoint-every"] = server_files.checkpoint_every
        told["--restore"] = server_files.restore
        given = {name: value for name, value in told.items() if value is not None}
        arguments = [text for name, value in given.items() for text in (name, str(value))]
        flags = ["--resume"] if server_files.resume else []
        flags += ["--coordinator"] if COORDINATOR in roles else []
        command = (server_program, *arguments, *flags, *protection)
        keeps = server_files.state is not None
        serving.append(ServerPlan(server, command, {**plain, **shown}, shown, keeps))
    return LaunchPlan(
        tuple(map(plan_rank, ranks)),
        size,
        host,
        cores,
        paths,
        tuple(sorted(user)),
        meeting,
        tuple(serving),
        restarts,
        min_np,
        server_files,
        servers_stay,
        tuple(playing),
        elastic,
        tuple(plan_rank(each.place, each) for each in spares),
    )


def _master(ranks: Sequence[Place], rendezvous: str | None) -> str:
    if rendezvous is not None:
        return parse_endpoint(rendezvous, RENDEZVOUS)[0]
    return "127.0.0.1" if ranks[0].host_count == 1 else ranks[0].host.name


def describe(plan: LaunchPlan, *, by_agents: bool) -> str:
    """Returns the plan as text for --dry-run, without the user's values, which may be secret."""
    command = shlex.join(plan.ranks[0].argv)
    table = [("rank", "host", "local rank", "stdin", "command")]
    for rank in plan.ranks:
        place = rank.place
        local = f"{place.local_rank} of {place.local_size}"
        stdin = "yours" if place.rank == 0 and not by_agents else "/dev/null"
        table.append((str(place.rank), place.host.destination, local, stdin, command))
    spares = plan.spares[: plan.elastic.spares] if plan.elastic is not None else ()
    for spare in spares:
        name = f"spare {spare.number}"
        table.append((name, spare.place.host.destination, "", "/dev/null", command))
    others: list[ServerPlan | RolePlan] = [*plan.servers, *plan.roles]
    for each in others:
        program = shlex.join(each.argv)
        table.append((name_of(each.number), each.place.host.destination, "", "/dev/null", program))
    shared = set.intersection(*(set(rank.shown.items()) for rank in plan.ranks))
    lines = [f"{_size_words(plan)}; nothing was started", "", *_aligned(table)]
    lines += ["", "set for every rank:"]
    if by_agents and plan.servers:
        shared.add((SERVERS, "<chosen by the agents>"))
    elif by_agents and plan.host_count > 1:
        shared.add((RENDEZVOUS, "<chosen by the first agent>"))
    lines += [f"  {name}={text}" for name, text in sorted(shared)]
    lines += [f"  {name}  (yours; the value is not shown)" for name in plan.user_names]
    for rank in plan.ranks:
        own = sorted(set(rank.shown.items()) - shared)
        if own:
            lines += ["", f"set for rank {rank.rank}:"]
            lines += [f"  {name}={text}" for name, text in own]
    for spare in spares:
        own = sorted(set(spare.shown.items()) - shared)
        lines += ["", f"set for spare {spare.number}:"]
        lines += [f"  {name}={text}" for name, text in own]
    for each in others:
        lines += ["", f"set for {name_of(each.number)}:"]
        lines += [f"  {name}={text}" for name, text in sorted(each.shown.items())]
    return "\n".join(lines)


def _size_words(plan: LaunchPlan) -> str:
    ranks = "1 rank" if plan.size == 1 else f"{plan.size} ranks"
    if plan.elastic is not None:
        ranks += f" ({plan.elastic.min_np} to {plan.elastic.max_np})"
    if plan.elastic is not None and plan.elastic.spares:
        count = plan.elastic.spares
        ranks += " and 1 spare" if count == 1 else f" and {count} spares"
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
