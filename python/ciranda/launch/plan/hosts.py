"""Parses the hosts that the user named, and decides which rank runs where. Pure.

    -H node1:2,user@node2:4,[fd00::1]:2,node[01-04,7]:8     slots after ':', 1 by default
    --hostfile, one line each:   node1 slots=2   or any entry of -H;   # starts a comment
        max_slots=4 of Open MPI allows more ranks than slots, which ciranda never starts

A host that is named twice has the slots of both.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ciranda.launch.errors import LaunchError

# Limits of the core (wire/types.h).
RANKS_MAX = 4096
LOCAL_RANKS_MAX = 256

_HOSTS_MAX = RANKS_MAX
_SLOTS_MAX = 999_999
_NAME_CHARACTERS_MAX = 253  # DNS
_SHOWN_CHARACTERS_MAX = 60
_THIS_HOST = ("localhost", "127.0.0.1", "::1")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*\.?")
_IPV4_LIKE = re.compile(r"[0-9.]+")
_SLOTS = re.compile(r"0*([1-9][0-9]{0,5})")
_LIST = re.compile(r"\[([^][]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^][]*\])")


_MAX_SLOTS = ("max_slots", "max-slots", "slots_max", "slots-max")  # Open MPI's spellings


@dataclass(frozen=True)
class Host:
    """A host. `name` is a name or address that ssh understands; IPv6 has no brackets."""

    name: str
    slots: int = 1
    user: str | None = None

    @property
    def destination(self) -> str:
        """The host as an argument of ssh."""
        return f"{self.user}@{self.name}" if self.user else self.name

    def __str__(self) -> str:
        """Returns the host as an entry of -H."""
        user = f"{self.user}@" if self.user else ""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{user}{name}:{self.slots}"


@dataclass(frozen=True)
class HostSource:
    """Named hosts, and the words for their source in errors: "-H", or the name of a file."""

    hosts: tuple[Host, ...]
    words: str


@dataclass(frozen=True)
class HostsFrom:
    """What names the hosts while the job runs: a script or, if that is empty, a hostfile."""

    script: str = ""
    slots_per_host: int | None = None  # of hosts for which the script gives none
    hostfile: str = ""

    def parse(self, text: str) -> tuple[Host, ...]:
        if self.script:
            return parse_discovered(text, self.script, self.slots_per_host)
        return parse_hostfile(text, self.hostfile)


@dataclass(frozen=True)
class Place:
    """The place of one rank. The cross values count the ranks with this local_rank over all hosts,
    as Horovod's do. They count the hosts if all hosts have the same number of ranks."""

    rank: int
    host: Host
    host_index: int  # among the hosts that have ranks
    host_count: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclass(frozen=True)
class SparePlace:
    """The place of a spare of an elastic job. It has no rank yet, so `place` has the numbers of the
    last rank, with its own host."""

    number: int
    place: Place
    host_index: int  # counts the hosts with ranks, then those with spares alone

    @property
    def host(self) -> Host:
        return self.place.host


@dataclass(frozen=True)
class ServerPlace:
    """The place of one parameter server."""

    server: int
    host: Host
    host_index: int  # counts the hosts with ranks, then those with servers alone


@dataclass(frozen=True)
class ServerFiles:
    """The files that servers write and read, in folders on their hosts."""

    state: str | None = None  # folder with a folder of state for each server
    durability: str = "log"  # promise of their answers: memory, log or disk
    resume: bool = False  # true: continue with the state that an earlier job left there
    checkpoints: str | None = None  # folder to which all servers write
    checkpoint_every: str | None = None  # pushes, or seconds as in 60s
    restore: str | None = None  # a checkpoint, or a folder of checkpoints


NO_SERVER_FILES = ServerFiles()

AnyPlace = Place | ServerPlace | SparePlace


def parse_hosts(text: str, where: str = "-H") -> tuple[Host, ...]:
    """Parses entries that commas separate. `where` begins the text of each LaunchError."""
    hosts: list[Host] = []
    for entry in _entries(text):
        hosts += _parse_entry(entry, where)
        _check_count(len(hosts), where)
    return _merge(hosts, where)


def parse_hostfile(text: str, file_name: str) -> tuple[Host, ...]:
    """Parses the lines of a hostfile. A LaunchError names the file and the line."""
    hosts: list[Host] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        fields = line.partition("#")[0].split()
        if fields:
            where = f"{file_name}, line {number}"
            hosts += _parse_line(fields, where)
            _check_count(len(hosts), where)
    if not hosts:
        raise LaunchError(
            f"{file_name}: it names no host; write one host a line, such as: node1 slots=2"
        )
    return _merge(hosts, file_name)


def gather_here(hosts: Iterable[Host], here: str) -> tuple[Host, ...]:
    """Replaces all names of this host by `here`, its own name, and merges the entries."""
    names = {*_THIS_HOST, here.casefold(), here.casefold().partition(".")[0]}
    renamed = (
        replace(host, name=here) if host.user is None and host.name.casefold() in names else host
        for host in hosts
    )
    return _merge(renamed, "the hosts")


def check_local_size(size: int) -> None:
    if not 1 <= size <= LOCAL_RANKS_MAX:
        raise LaunchError(
            f"the number of ranks (-np) must be between 1 and {LOCAL_RANKS_MAX}, not {size}"
        )


def assign_ranks(hosts: Sequence[Host], size: int | None, source: str = "-H") -> tuple[Place, ...]:
    """Fills the hosts in order. `size` None: all slots. `source` is the hosts' source in errors."""
    slots = sum(host.slots for host in hosts)
    size = slots if size is None else size
    if not 1 <= size <= RANKS_MAX:
        raise LaunchError(
            f"the number of ranks (-np) must be between 1 and {RANKS_MAX}, not {size}"
        )
    if size > slots:
        raise LaunchError(
            f"-np {size} asks for more ranks than the {slots} slots of {source}; "
            "add hosts or slots, or start fewer ranks"
        )
    left, local_sizes = size, []
    for host in hosts:
        local_sizes.append(min(host.slots, left))
        left -= local_sizes[-1]
        if local_sizes[-1] > LOCAL_RANKS_MAX:
            raise LaunchError(
                f"the host '{host.name}' would get {local_sizes[-1]} ranks, but at most "
                f"{LOCAL_RANKS_MAX} run on one host; give it fewer slots in {source}"
            )
    used = [count for count in local_sizes if count > 0]  # the last hosts may have no rank
    cross_sizes = Counter(itertools.chain.from_iterable(map(range, used)))
    cross_ranks = Counter[int]()
    places: list[Place] = []
    for index, (host, local_size) in enumerate(zip(hosts, used, strict=False)):
        for local_rank in range(local_size):
            places.append(
                Place(
                    rank=len(places),
                    host=host,
                    host_index=index,
                    host_count=len(used),
                    local_rank=local_rank,
                    local_size=local_size,
                    cross_rank=cross_ranks[local_rank],
                    cross_size=cross_sizes[local_rank],
                )
            )
            cross_ranks[local_rank] += 1
    return tuple(places)


def assign_spares(
    count: int,
    ranks: Sequence[Place],
    hosts: Sequence[Host],
    source: str = "-H",
    *,
    hosts_may_come: bool = False,
) -> tuple[SparePlace, ...]:
    """Gives spares the slots that the ranks have left free, in order.

    Where hosts may come, spares that find no slot wait for one, on no matter which host.
    """
    slots = [(index, host) for index, host in enumerate(hosts) for _ in range(host.slots)]
    free = slots[len(ranks) :]
    if hosts_may_come:
        free += slots[-1:] * (count - len(free))
    if count > len(free):
        raise LaunchError(
            f"--spares {count} and {len(ranks)} ranks ask for more than the {len(slots)} slots of "
            f"{source}; add hosts or slots, or start fewer ranks"
        )
    return tuple(
        SparePlace(len(ranks) + number, replace(ranks[-1], host=host), index)
        for number, (index, host) in enumerate(free[:count])
    )


def spares_beside(count: int, ranks: Sequence[Place]) -> tuple[SparePlace, ...]:
    """Returns the places of spares on the host of the last rank, whose slots nobody counts."""
    last = ranks[-1]
    return tuple(SparePlace(len(ranks) + number, last, last.host_index) for number in range(count))


def assign_servers(
    count: int, ranks: Sequence[Place], named: Sequence[Host] = ()
) -> tuple[ServerPlace, ...]:
    """Places servers in turn on the slots of `named`, or, without any, on the ranks' hosts."""
    indices = {place.host.name.casefold(): place.host_index for place in ranks}
    hosts = [host for host in named for _ in range(host.slots)]
    if not hosts:
        hosts = list({place.host_index: place.host for place in ranks}.values())
    places = []
    for server in range(count):
        host = hosts[server % len(hosts)]
        index = indices.setdefault(host.name.casefold(), len(set(indices.values())))
        places.append(ServerPlace(server, host, index))
    return tuple(places)


def parse_discovered(text: str, script: str, slots_per_host: int | None) -> tuple[Host, ...]:
    """Parses what a discovery script prints: one host a line, with its slots or without.

    A LaunchError names the script and the line.
    """
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        where = f"{script}, line {number} of its output"
        if slots_per_host is None and not _split_slots(entry)[1]:
            raise LaunchError(
                f"{where}: {shown(entry)} has no slots; print HOST:SLOTS, or give --slots-per-host"
            )
        found = _parse_entry(entry, where)
        if not _split_slots(entry)[1]:
            found = [replace(each, slots=slots_per_host or 1) for each in found]
        hosts += found
        _check_count(len(hosts), where)
    return _merge(hosts, script)


def _parse_line(fields: Sequence[str], where: str) -> list[Host]:
    entries, *options = fields
    hosts = list(parse_hosts(entries, where))
    counts: dict[str, int] = {}
    for option in options:
        key, equals, count = option.partition("=")
        key = "max_slots" if key in _MAX_SLOTS else key
        if key not in ("slots", "max_slots") or not equals:
            raise LaunchError(f"{where}: {shown(option)} is not understood; write host slots=N")
        with_entry = key == "slots" and any(_split_slots(each)[1] for each in _entries(entries))
        if key in counts or with_entry:
            raise LaunchError(f"{where}: the slots are given twice; write host slots=N")
        counts[key] = _parse_slots(count, option, where)
    if "slots" in counts:
        hosts = [replace(host, slots=counts["slots"]) for host in hosts]
    most = counts.get("max_slots")
    if most is not None and any(most < host.slots for host in hosts):
        raise LaunchError(f"{where}: max_slots={most} is less than the slots; raise it")
    return hosts


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in _COMMA_OUTSIDE_BRACKETS.split(text)]


def _parse_entry(entry: str, where: str) -> list[Host]:
    if not entry:
        raise LaunchError(f"{where}: a host is missing; write host:slots with commas between them")
    user, at, rest = entry.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise LaunchError(
            f"{where}: {shown(user)} in {shown(entry)} is not the name of a user; "
            "letters, digits and ._- may be in it"
        )
    pattern, colon, count = _split_slots(rest)
    slots = _parse_slots(count, entry, where) if colon else 1
    if ":" in _LIST.sub("", pattern):
        raise LaunchError(
            f"{where}: {shown(entry)} holds more than one ':'; write an IPv6 address in brackets, "
            "as in [fd00::1]:2"
        )
    return [Host(name, slots, user or None) for name in _parse_names(pattern, where)]


def _split_slots(rest: str) -> tuple[str, str, str]:
    """Returns ('node1', ':', '2') for `node1:2`; colons in brackets belong to an address."""
    name, colon, count = rest.rpartition(":")
    return (name, colon, count) if colon and "]" not in count else (rest, "", "")


def _parse_slots(count: str, entry: str, where: str) -> int:
    match = _SLOTS.fullmatch(count)
    if match is None:
        example = "slots=2" if "=" in entry else "node1:2"
        raise LaunchError(
            f"{where}: the slots {shown(count)} in {shown(entry)} must be a number "
            f"from 1 to {_SLOTS_MAX}, as in {example}"
        )
    return int(match[1])


def _parse_names(pattern: str, where: str) -> list[str]:
    if pattern.startswith("[") and pattern.endswith("]") and ":" in pattern:
        return [_parse_ipv6(pattern[1:-1], where)]
    return [_check_name(name, where) for name in _expand(pattern, where)]


def _parse_ipv6(text: str, where: str) -> str:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        address = None
    zone = address.scope_id if address else None
    if address is None or (zone is not None and not _NAME.fullmatch(zone)):
        raise LaunchError(f"{where}: {shown(text)} in brackets is not an IPv6 address")
    return str(address)


def _check_name(name: str, where: str) -> str:
    if _IPV4_LIKE.fullmatch(name):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise LaunchError(
                f"{where}: {shown(name)} is not an IPv4 address; four numbers up to 255 are"
            ) from None
    if not _NAME.fullmatch(name) or len(name) > _NAME_CHARACTERS_MAX:
        raise LaunchError(
            f"{where}: {shown(name)} is not the name of a host; letters, digits and ._- may be "
            f"in it, not first a '-', and at most {_NAME_CHARACTERS_MAX} characters"
        )
    return name


def _expand(pattern: str, where: str) -> Iterator[str]:
    """Expands `node[01-04,7]` to five names, by Slurm's rules: `[08-11]` keeps two digits."""
    literals_and_lists = _LIST.split(pattern)  # text, list, text, …
    choices = [
        _expand_list(each, pattern, where) if index % 2 else (each,)
        for index, each in enumerate(literals_and_lists)
    ]
    if any("[" in text or "]" in text for text in literals_and_lists[::2]):
        raise LaunchError(f"{where}: the brackets in {shown(pattern)} do not match")
    count = 1
    for each in choices:
        count *= len(each)
        _check_count(count, where)
    return ("".join(parts) for parts in itertools.product(*choices))


def _expand_list(text: str, pattern: str, where: str) -> Sequence[str]:
    names: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise LaunchError(
                f"{where}: {shown(part)} in {shown(pattern)} is neither a number nor a range; "
                "a list is written as node[01-04,7]"
            )
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise LaunchError(
                f"{where}: the range {part.strip()} in {shown(pattern)} runs backwards; "
                f"write {last}-{first}"
            )
        _check_count(len(names) + int(last) - int(first) + 1, where)
        names += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return names


def _check_count(count: int, where: str) -> None:
    if count > _HOSTS_MAX:
        raise LaunchError(
            f"{where}: more than {_HOSTS_MAX} hosts; a job has at most {RANKS_MAX} ranks"
        )


def _merge(hosts: Iterable[Host], where: str) -> tuple[Host, ...]:
    """Merges the entries of a host into its first entry, which gets all its slots."""
    merged: dict[str, Host] = {}
    for host in hosts:
        key = host.name.casefold()
        known = merged.get(key)
        if known is None:
            merged[key] = host
        elif known.user != host.user:
            raise LaunchError(
                f"{where}: the host '{host.name}' is named with two users; a job has one on a host"
            )
        else:
            merged[key] = replace(known, slots=known.slots + host.slots)
            if merged[key].slots > _SLOTS_MAX:
                raise LaunchError(
                    f"{where}: the host '{host.name}' is named with more than {_SLOTS_MAX} slots "
                    "in all; give it fewer"
                )
    return tuple(merged.values())


def shown(text: str) -> str:
    """Returns the text quoted, on one line and shortened, for an error."""
    if len(text) > _SHOWN_CHARACTERS_MAX:
        text = text[: _SHOWN_CHARACTERS_MAX - 1] + "…"
    return repr(text)
