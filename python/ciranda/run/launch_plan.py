"""Options and environment -> who runs what with which environment. Pure; --dry-run prints it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ciranda.run import hosts as host_list
from ciranda.run.environment import (
    JobPlaces,
    default_environment,
    job_environment,
    rank_environment,
)
from ciranda.run.errors import LaunchError
from ciranda.run.hosts import LOCAL_RANKS_MAX, Host, Place


@dataclass(frozen=True)
class RankPlan:
    place: Place
    argv: tuple[str, ...]
    environment: Mapping[str, str]  # complete: what execve gets
    shown: Mapping[str, str]  # the launcher's part of it; a user's values may be secret

    @property
    def rank(self) -> int:
        return self.place.rank


@dataclass(frozen=True)
class LaunchPlan:
    ranks: tuple[RankPlan, ...]
    host: str  # this one
    cores: int  # of this one
    places: JobPlaces
    user_names: tuple[str, ...]  # set by -x and --env-file

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def host_count(self) -> int:
        return self.ranks[-1].place.host_index + 1


@dataclass(frozen=True)
class HostSource:
    """Hosts as the user named them, and where: "-H a:2", or the name of a file."""

    hosts: tuple[Host, ...]
    words: str


def choose_places(
    np: int | None, named: HostSource | None, *, cores: int, host: str
) -> tuple[Place, ...]:
    """One for each rank: -np of them, else as many as slots were named, else as cores are here."""
    if named is not None:
        hosts = host_list.gather_here(named.hosts, host)
        return host_list.assign_ranks(hosts, np, named.words)
    size = cores if np is None else np
    if not 1 <= size <= LOCAL_RANKS_MAX:
        raise LaunchError(
            f"the number of ranks (-np) must be between 1 and {LOCAL_RANKS_MAX}, not {size}"
        )
    return host_list.assign_ranks([Host(host, slots=size)], size)


def refuse_other_hosts(ranks: Iterable[Place], named: HostSource | None, *, host: str) -> None:
    """Ranks start on this host only, so far."""
    for place in ranks:
        if named is not None and (place.host.name != host or place.host.user is not None):
            raise LaunchError(
                f"{named.words} names the host '{place.host.destination}', but several hosts are "
                f"not supported yet: only this one ({host}) is; --dry-run shows the plan"
            )


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
    cores: int,
    host: str,
    places: JobPlaces,
    inherited: Mapping[str, str],
    user: Mapping[str, str],
    columns: int | None = None,
) -> LaunchPlan:
    """Later wins: what is inherited, the launcher's, the user's. `host` is this one."""
    set_already = {**inherited, **user}
    master = "127.0.0.1" if ranks[-1].host_index == 0 else ranks[0].host.name
    job = job_environment(places, size=len(ranks), master=master)
    plans = []
    for place in ranks:
        known_cores = cores if place.host.name == host else None
        defaults = default_environment(
            cores=known_cores, local_size=place.local_size, columns=columns
        )
        ours = {name: text for name, text in defaults.items() if name not in set_already}
        ours |= {**job, **rank_environment(places, place)}
        shown = {name: text for name, text in ours.items() if name not in user}
        plans.append(RankPlan(place, tuple(argv), {**inherited, **ours, **user}, shown))
    return LaunchPlan(tuple(plans), host, cores, places, tuple(sorted(user)))


def describe(plan: LaunchPlan) -> str:
    """The plan as text for --dry-run. Values the user set are not shown: they may be secret."""
    command = shlex.join(plan.ranks[0].argv)
    table = [("rank", "host", "local rank", "stdin", "command")]
    for rank in plan.ranks:
        place = rank.place
        local = f"{place.local_rank} of {place.local_size}"
        stdin = "yours" if place.rank == 0 else "/dev/null"
        table.append((str(place.rank), place.host.destination, local, stdin, command))
    shared = set.intersection(*(set(rank.shown.items()) for rank in plan.ranks))
    lines = [f"{_size_words(plan)}; nothing was started", "", *_aligned(table)]
    lines += ["", "set for every rank:"]
    lines += [f"  {name}={text}" for name, text in sorted(shared)]
    lines += [f"  {name}  (yours; the value is not shown)" for name in plan.user_names]
    for rank in plan.ranks:
        own = sorted(set(rank.shown.items()) - shared)
        if own:
            lines += ["", f"set for rank {rank.rank}:"]
            lines += [f"  {name}={text}" for name, text in own]
    return "\n".join(lines)


def _size_words(plan: LaunchPlan) -> str:
    ranks = "1 rank" if plan.size == 1 else f"{plan.size} ranks"
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
