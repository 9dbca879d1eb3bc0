"""How many ranks an elastic job may have, from its options. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan import hosts as host_list

ELASTIC_TIMEOUT_S = 600.0  # Horovod's default
LEASE_S = 2.5  # as between hosts
COOLDOWN_RANGE_S = (5.0, 60.0)
_RESTARTS_OF_WORKER = 10  # without --reset-limit; a wrong script must not be started for ever
_LEASE_MIN_S = 0.5  # five beats
_START_TIMEOUT_S = 30.0  # that of init()


@dataclass(frozen=True, kw_only=True)
class ElasticOptions:
    """The options as the user gave them; None if not given."""

    min_np: int | None
    max_np: int | None
    spares: int | None
    reset_limit: int | None
    elastic_timeout: float | None
    lease: float | None = None
    cooldown_range: tuple[float, float] | None = None
    host_discovery_script: str | None = None

    @property
    def asked(self) -> str:
        """The option that makes the job elastic; empty: none does."""
        asking = {
            "--min-np": self.min_np,
            "--max-np": self.max_np,
            "--spares": self.spares,
            "--host-discovery-script": self.host_discovery_script,
        }
        return next((name for name, value in asking.items() if value is not None), "")


@dataclass(frozen=True, kw_only=True)
class ElasticLimits:
    """The limits of an elastic job."""

    np: int  # ranks at the start
    min_np: int
    max_np: int
    spares: int  # processes at the start besides the ranks
    reset_limit: int | None  # how many lost processes are started again; None: all
    elastic_timeout_s: float  # how long too few ranks wait for others
    lease_s: float = LEASE_S  # how long a process may stand still
    cooldown_s: float = COOLDOWN_RANGE_S[0]  # before a lost host is called again, at first
    cooldown_max_s: float = COOLDOWN_RANGE_S[1]  # it doubles up to this
    hosts_may_come: bool = False  # while the job runs

    @property
    def processes(self) -> int:
        """How many processes there are, if hosts have room for them."""
        return (self.max_np if self.hosts_may_come else self.np) + self.spares


def choose_np(options: ElasticOptions, cores: int) -> int:
    """Returns the number of ranks if -np is not given: one for each core, within the limits."""
    most = cores if options.max_np is None else min(cores, options.max_np)
    return max(most, options.min_np or 1)


def choose_limits(
    options: ElasticOptions, np: int, *, hosts_may_come: bool = False
) -> ElasticLimits | None:
    """Returns the limits of a job of `np` ranks, or None if it is not elastic.

    `hosts_may_come`: a script or a file names them while the job runs. Raises LaunchError if the
    options contradict each other.
    """
    if not options.asked:
        _refuse_alone(options)
        return None
    cooldown_s, cooldown_max_s = options.cooldown_range or COOLDOWN_RANGE_S
    limits = ElasticLimits(
        np=np,
        min_np=np if options.min_np is None else options.min_np,
        max_np=np if options.max_np is None else options.max_np,
        spares=options.spares or 0,
        reset_limit=options.reset_limit,
        elastic_timeout_s=(
            ELASTIC_TIMEOUT_S if options.elastic_timeout is None else options.elastic_timeout
        ),
        lease_s=LEASE_S if options.lease is None else options.lease,
        cooldown_s=cooldown_s,
        cooldown_max_s=cooldown_max_s,
        hosts_may_come=hosts_may_come,
    )
    _check(limits)
    return limits


def choose_worker_limits(options: ElasticOptions, np: int) -> tuple[int, int]:
    """Returns the limits of a job of `np` workers of parameter servers.

    These are how many workers are enough to go on, and how many times killed ones are started
    again. Raises LaunchError for an option that has no meaning there.
    """
    if not options.asked:
        _refuse_alone(options)
    for_ranks = {
        "--spares": (options.spares, "a lost worker is started again in its own place"),
        "--elastic-timeout": (options.elastic_timeout, "workers do not wait for each other"),
        "--lease": (options.lease, "the servers go on without a silent worker after 10 seconds"),
        "--blacklist-cooldown-range": (options.cooldown_range, "a lost host ends the job"),
        "--host-discovery-script": (options.host_discovery_script, "its workers' hosts stay"),
    }
    for name, (value, why) in for_ranks.items():
        if value is not None:
            raise LaunchError(f"{name} does not go with --ps: {why}")
    if options.max_np is not None and options.max_np > np:
        raise LaunchError(
            f"--max-np: a job with servers has the workers that it starts with; give them as -np, "
            f"not {options.max_np} as --max-np"
        )
    min_np = np if options.min_np is None else options.min_np
    max_np = np if options.max_np is None else options.max_np
    limit = options.reset_limit
    _check_limits(np, min_np, max_np, limit)
    return min_np, _RESTARTS_OF_WORKER * np if limit is None else limit


def start_timeout_s(environment: Mapping[str, str]) -> float:
    """Returns how long ranks with this environment may take to meet.

    The ranks themselves refuse a value that is no number.
    """
    for name in ("CIRANDA_START_TIMEOUT_SECONDS", "HOROVOD_START_TIMEOUT"):
        text = environment.get(name, "")
        if text.isdecimal():
            return float(text)
    return _START_TIMEOUT_S


def _refuse_alone(options: ElasticOptions) -> None:
    alone = {
        "--reset-limit": options.reset_limit,
        "--elastic-timeout": options.elastic_timeout,
        "--lease": options.lease,
        "--blacklist-cooldown-range": options.cooldown_range,
    }
    for name, value in alone.items():
        if value is not None:
            raise LaunchError(f"{name} goes with --min-np, --max-np or --spares: elastic jobs")


def _check_limits(np: int, min_np: int, max_np: int, reset_limit: int | None) -> None:
    if not 1 <= min_np <= np:
        raise LaunchError(
            f"--min-np must be between 1 and the number of ranks (-np), {np}, not {min_np}"
        )
    if max_np < np:
        raise LaunchError(
            f"--max-np must be at least the number of ranks (-np), {np}, not {max_np}"
        )
    if reset_limit is not None and reset_limit < 0:
        raise LaunchError(f"--reset-limit must be at least 0, not {reset_limit}")


def _check(limits: ElasticLimits) -> None:
    _check_limits(limits.np, limits.min_np, limits.max_np, limits.reset_limit)
    if limits.spares < 0:
        raise LaunchError(f"--spares must be at least 0, not {limits.spares}")
    most = max(limits.max_np, limits.processes)
    if most > host_list.LOCAL_RANKS_MAX:
        raise LaunchError(
            f"an elastic job has at most {host_list.LOCAL_RANKS_MAX} ranks and spares, not {most}"
        )
    if not limits.elastic_timeout_s > 0:
        raise LaunchError(
            f"--elastic-timeout must be more than 0 seconds, not {limits.elastic_timeout_s:g}"
        )
    if not 0 < limits.cooldown_s <= limits.cooldown_max_s:
        raise LaunchError(
            "--blacklist-cooldown-range takes two numbers of seconds, the smaller one first, and "
            f"not {limits.cooldown_s:g} {limits.cooldown_max_s:g}"
        )
    if not limits.lease_s >= _LEASE_MIN_S:
        raise LaunchError(
            f"--lease must be at least {_LEASE_MIN_S:g} seconds, not {limits.lease_s:g}"
        )
