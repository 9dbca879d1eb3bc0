"""Options and environment -> who runs what with which environment. Pure; --dry-run prints it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ciranda.run.environment import (
    JobPlaces,
    common_environment,
    default_environment,
    rank_environment,
)
from ciranda.run.errors import LaunchError

LOCAL_RANKS_MAX = 256  # the core's limit for one host
_LOCAL_HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class RankPlan:
    rank: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]  # complete: what execve gets
    own: Mapping[str, str]  # the part in which this rank differs from the others


@dataclass(frozen=True)
class LaunchPlan:
    ranks: tuple[RankPlan, ...]
    host: str
    cores: int
    places: JobPlaces
    common: Mapping[str, str]  # set by the launcher for all ranks
    user_names: tuple[str, ...]  # set by -x and --env-file; values may be secret

    @property
    def size(self) -> int:
        return len(self.ranks)


def choose_size(np: int | None, hosts: str | None, *, cores: int, host: str) -> int:
    """The number of ranks: -np, else the slots of -H, else the cores."""
    slots = None if hosts is None else parse_hosts(hosts, host=host)
    size = np if np is not None else (slots if slots is not None else cores)
    if not 1 <= size <= LOCAL_RANKS_MAX:
        raise LaunchError(
            f"the number of ranks (-np) must be between 1 and {LOCAL_RANKS_MAX}, not {size}"
        )
    if slots is not None and size > slots:
        raise LaunchError(f"-np {size} asks for more ranks than the {slots} slots of -H {hosts}")
    return size


def parse_hosts(text: str, *, host: str) -> int:
    """Slots in Horovod's `-H localhost:N`; every other host is refused."""
    slots = 0
    for entry in text.split(","):
        name, colon, count = entry.strip().rpartition(":")
        if not colon:
            name, count = count, "1"
        if name not in (*_LOCAL_HOSTS, host):
            raise LaunchError(
                f"-H names the host '{name}', but several hosts are not supported yet: "
                "only localhost is"
            )
        if not count.isdecimal():
            raise LaunchError(f"-H {entry.strip()}: the slots after ':' must be a number")
        slots += int(count)
    return slots


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
    size: int,
    cores: int,
    host: str,
    places: JobPlaces,
    inherited: Mapping[str, str],
    user: Mapping[str, str],
    columns: int | None = None,
) -> LaunchPlan:
    """Later wins: what is inherited, the launcher's, the user's, this rank's."""
    set_already = {**inherited, **user}
    defaults = default_environment(cores=cores, local_size=size, columns=columns)
    common = {name: text for name, text in defaults.items() if name not in set_already}
    common.update(common_environment(places, size=size, host=host))
    ranks = []
    for rank in range(size):
        own = rank_environment(places, rank)
        environment = {**inherited, **common, **user, **own}
        ranks.append(RankPlan(rank, tuple(argv), environment, own))
    names = tuple(sorted(user))
    shown = {name: text for name, text in common.items() if name not in user}
    return LaunchPlan(tuple(ranks), host, cores, places, shown, names)


def describe(plan: LaunchPlan) -> str:
    """The plan as text for --dry-run. Values the user set are not shown: they may be secret."""
    command = shlex.join(plan.ranks[0].argv)
    ranks = "1 rank" if plan.size == 1 else f"{plan.size} ranks"
    lines = [f"{ranks} on {plan.host} ({plan.cores} cores available); nothing was started", ""]
    lines += _table(
        ("rank", "host", "local rank", "stdin", "command"),
        [
            (
                str(rank.rank),
                plan.host,
                f"{rank.rank} of {plan.size}",
                "yours" if rank.rank == 0 else "/dev/null",
                command,
            )
            for rank in plan.ranks
        ],
    )
    lines += ["", "set for every rank:"]
    lines += [f"  {name}={text}" for name, text in sorted(plan.common.items())]
    lines += [f"  {name}  (yours; the value is not shown)" for name in plan.user_names]
    for rank in plan.ranks:
        lines += ["", f"set for rank {rank.rank}:"]
        lines += [f"  {name}={text}" for name, text in sorted(rank.own.items())]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
