"""The environment variables of a job's processes, and the cores that ranks share."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.hosts import Host, Place, assign_ranks
from ciranda.launch.plan.processes import COORDINATOR, name_of

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_CGROUP_ROOT = "/sys/fs/cgroup"


@dataclass(frozen=True)
class JobPaths:
    """The id and the folders of one job."""

    job_id: str
    job_dir: str
    log_dir: str

    def log_file(self, number: int) -> str:
        return os.path.join(self.log_dir, f"{name_of(number).replace(' ', '-')}.log")

    def error_file(self, number: int) -> str:
        return os.path.join(self.log_dir, f"{name_of(number).replace(' ', '-')}.error.json")

    def over_file(self, number: int) -> str:
        """The file that exists once a worker's program has ended and has left its servers."""
        return os.path.join(self.job_dir, f"over-{number}")


# Variables of the meeting of several hosts. The numbers of the two descriptors are known when a
# process is started.
RENDEZVOUS = "CIRANDA_RENDEZVOUS"
RENDEZVOUS_FD = "CIRANDA_RENDEZVOUS_FD"
KEY_FD = "CIRANDA_KEY_FD"
NIC = "CIRANDA_NIC"
PORT_RANGE = "CIRANDA_PORT_RANGE"
TLS = "CIRANDA_TLS"
# Variables of elastic jobs: the socket to the arbiter, and the number of the process in the job.
# Both are known when a process is started.
MEMBER_FD = "CIRANDA_MEMBER_FD"
INCARNATION = "CIRANDA_INCARNATION"
# Variables that choose backends.
CPU_OPERATIONS = "CIRANDA_CPU_OPERATIONS"
GPU_OPERATIONS = "CIRANDA_GPU_OPERATIONS"
TRUSTED_NETWORK = "CIRANDA_TRUSTED_NETWORK"
# Variables of parameter servers: the address of each, the socket on which one listens, and the
# number of a process's life, from 1.
SERVERS = "CIRANDA_PS_SERVERS"
SERVER_LISTENER_FD = "CIRANDA_PS_LISTENER_FD"
LIFE = "CIRANDA_LIFE"
# Variable of the evaluator: the folder of the checkpoints.
EVALUATED = "CIRANDA_EVALUATED"
# Variable of the coordinator: 1.
COORDINATES = "CIRANDA_COORDINATOR"
HERE = "here"  # in SERVERS: a server on this host, found in the job's folder
_SERVER_NAMES = frozenset({SERVERS, SERVER_LISTENER_FD, LIFE, EVALUATED, COORDINATES})
# Addresses of servers that were started by hand. Their workers need the servers' key.
SERVERS_BY_HAND = "CIRANDA_PS"
_KEY_FILE = "CIRANDA_KEY_FILE"
_MEETING_NAMES = frozenset({RENDEZVOUS, RENDEZVOUS_FD, KEY_FD, _KEY_FILE})
_ELASTIC_NAMES = frozenset({MEMBER_FD, INCARNATION})
# Variables of one process, or of one job, that other processes must not take for theirs.
_TOLD_NAMES = _MEETING_NAMES | _SERVER_NAMES | _ELASTIC_NAMES


def job_environment(
    paths: JobPaths, *, size: int, master: str, rendezvous: str | None = None
) -> dict[str, str]:
    """Returns the variables that all ranks of a job share; `master` is the host of rank 0."""
    meeting = {} if rendezvous is None else {RENDEZVOUS: rendezvous}
    return {
        **meeting,
        "CIRANDA_SIZE": str(size),
        "CIRANDA_JOB_ID": paths.job_id,
        "CIRANDA_JOB_DIR": paths.job_dir,
        "CIRANDA_LOG_DIR": paths.log_dir,
        "HOROVOD_SIZE": str(size),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(_master_port(paths.job_id)),
        "TORCHELASTIC_RUN_ID": paths.job_id,
    }


def rank_environment(paths: JobPaths, place: Place, number: int) -> dict[str, str]:
    """Returns the variables that tell a rank its place. `number` is the number of its process."""
    error_file = paths.error_file(number)
    numbers = {
        "RANK": place.rank,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_SIZE": place.local_size,
    }
    return {
        **{f"CIRANDA_{name}": str(number) for name, number in numbers.items()},
        **{f"HOROVOD_{name}": str(number) for name, number in numbers.items()},
        # Ours count hosts. Horovod's count the ranks with this local rank, which differs if hosts
        # have different numbers of ranks.
        "CIRANDA_CROSS_RANK": str(place.host_index),
        "CIRANDA_CROSS_SIZE": str(place.host_count),
        "HOROVOD_CROSS_RANK": str(place.cross_rank),
        "HOROVOD_CROSS_SIZE": str(place.cross_size),
        "HOROVOD_HOSTNAME": place.host.name,
        "RANK": str(place.rank),
        "ROLE_RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.host_index),
        "NODE_RANK": str(place.host_index),
        "CIRANDA_ERROR_FILE": error_file,
        "TORCHELASTIC_ERROR_FILE": error_file,
    }


def coordinator_environment(paths: JobPaths) -> dict[str, str]:
    """Returns the coordinator's variables: it is no rank, but named rank 0 on a single host."""
    alone = {"CIRANDA_RANK": "0", "CIRANDA_CROSS_RANK": "0", "CIRANDA_CROSS_SIZE": "1"}
    return {**alone, "CIRANDA_ERROR_FILE": paths.error_file(COORDINATOR)}


def server_environment(paths: JobPaths) -> dict[str, str]:
    """Returns the variables that tell a parameter server its job."""
    return {"CIRANDA_JOB_ID": paths.job_id, "CIRANDA_JOB_DIR": paths.job_dir}


@functools.cache
def identity_names() -> frozenset[str]:
    """Returns the variables that only the launcher may set: a user's value would split the job."""
    paths = JobPaths("", "", "")
    (place,) = assign_ranks([Host("")], 1)
    names = {*job_environment(paths, size=1, master=""), *rank_environment(paths, place, 0)}
    return _TOLD_NAMES | names - {"MASTER_ADDR", "MASTER_PORT", "HOROVOD_HOSTNAME"}


def without_identity(environment: Mapping[str, str]) -> dict[str, str]:
    """Drops the variables of the meeting, of servers and of elastic jobs that an outer launcher has
    set.

    This launcher may run in a rank of another job.
    """
    return {
        name: text
        for name, text in environment.items()
        if name not in _TOLD_NAMES or _is_by_hand(name, environment)
    }


def _is_by_hand(name: str, environment: Mapping[str, str]) -> bool:
    """Returns true for the key file of servers that the user has started by hand."""
    return name == _KEY_FILE and SERVERS_BY_HAND in environment


def may_travel(name: str, environment: Mapping[str, str]) -> bool:
    """Returns true if a variable may go to other hosts: it identifies no rank and no job."""
    return name not in identity_names() or _is_by_hand(name, environment)


def default_environment(
    *, cores: int | None, local_size: int, one_host: bool, columns: int | None
) -> dict[str, str]:
    """Returns variables for use if neither the user nor the environment has set them.

    `cores` is None if the host's cores are not known here.
    """
    # Block-buffered output would be lost with a process that is killed.
    defaults = {"PYTHONUNBUFFERED": "1"}
    # NCCL by default listens on every network, and for its RAS service, which nobody asked for.
    defaults["NCCL_RAS_ENABLE"] = "0"
    if one_host:
        defaults["NCCL_SOCKET_IFNAME"] = "lo"
    if cores is not None:
        defaults["OMP_NUM_THREADS"] = str(max(1, cores // local_size))
    if columns is not None:
        defaults["COLUMNS"] = str(columns)
    return defaults


def _master_port(job_id: str) -> int:
    """Returns a port below the ephemeral range. ciranda itself never listens on it."""
    digits = re.sub(r"[^0-9a-f]", "", job_id)[:4] or "0"
    return 20_000 + int(digits, 16) % 12_000


def parse_assignments(
    items: Iterable[str], environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Reads `-x VAR` and `-x VAR=value`; returns the values and the names that are not set."""
    values: dict[str, str] = {}
    missing: list[str] = []
    for item in items:
        name, equals, value = item.partition("=")
        _check_name(name, "-x")
        if equals:
            values[name] = value
        elif name in environ:
            values[name] = environ[name]
        else:
            missing.append(name)
    return values, missing


def parse_env_file(text: str, file_name: str) -> dict[str, str]:
    """Reads KEY=VALUE lines; an error names the file and the line but never a value."""
    values: dict[str, str] = {}
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        line = raw.strip().removeprefix("export ").lstrip()
        if not line or line.startswith("#"):
            continue
        where = f"{file_name}, line {number}"
        name, equals, value = line.partition("=")
        if not equals:
            raise LaunchError(f"{where}: expected KEY=VALUE, but there is no '='")
        _check_name(name.rstrip(), where)
        if "\0" in value:
            raise LaunchError(f"{where}: the value holds a zero byte")
        values[name.rstrip()] = _unquote(value.strip(), where)
    return values


def _check_name(name: str, where: str) -> None:
    if not _NAME.match(name):
        # The text may be a secret value without its name, so the error does not repeat it.
        raise LaunchError(
            f"{where}: the text before '=' is not a name of a variable "
            "(letters, digits and _, not starting with a digit)"
        )
    if name in identity_names():
        raise LaunchError(f"{where}: {name} is set by the launcher and cannot be chosen")


def _unquote(value: str, where: str) -> str:
    quote = value[:1]
    if quote not in ("'", '"'):
        return re.split(r"(?:^|\s)#", value, maxsplit=1)[0].rstrip()
    body = r"[^']*" if quote == "'" else r'(?:[^"\\]|\\.)*'
    match = re.match(rf"{quote}({body}){quote}\s*(?:#.*)?\Z", value)
    if match is None:
        raise LaunchError(f"{where}: the value's {quote} is not closed, or text follows it")
    if quote == "'":
        return match[1]
    escapes = {"n": "\n", "t": "\t", "r": "\r"}
    return re.sub(r"\\(.)", lambda found: escapes.get(found[1], found[1]), match[1])


def count_cores() -> int:
    """Returns the cores this process may use: its affinity, limited by its cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            groups = file.read()
    except OSError:
        return cores
    return cores_under_quota(cores, groups, _CGROUP_ROOT)


def cores_under_quota(cores: int, proc_self_cgroup: str, root: str) -> int:
    """Returns `cores`, or fewer if the cgroup (v1 or v2) or one above it has a CPU quota."""
    for line in proc_self_cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            read, mounts = _quota_v2, (root, os.path.join(root, "unified"))
        elif "cpu" in controllers.split(","):
            read, mounts = _quota_v1, (os.path.join(root, controllers), os.path.join(root, "cpu"))
        else:
            continue
        for mount in mounts:
            for folder in _folders_up(mount, path):
                quota = read(folder)
                if quota is not None:
                    cores = min(cores, max(1, int(quota)))
    return cores


def _folders_up(mount: str, path: str) -> list[str]:
    parts = [part for part in path.split("/") if part and part != ".."]
    return [os.path.join(mount, *parts[:count]) for count in range(len(parts), -1, -1)]


def _quota_v2(folder: str) -> float | None:
    words = _read_words(os.path.join(folder, "cpu.max"))
    if len(words) != 2 or words[0] == "max":
        return None
    return _ratio(words[0], words[1])


def _quota_v1(folder: str) -> float | None:
    quota = _read_words(os.path.join(folder, "cpu.cfs_quota_us"))
    period = _read_words(os.path.join(folder, "cpu.cfs_period_us"))
    return _ratio(quota[0], period[0]) if quota and period else None


def _ratio(quota: str, period: str) -> float | None:
    try:
        quota_us, period_us = int(quota), int(period)
    except ValueError:
        return None
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


def _read_words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except (OSError, ValueError):
        return []
