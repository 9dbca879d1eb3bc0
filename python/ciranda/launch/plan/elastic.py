"""How many ranks an elastic job may have, from its options. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan import hosts as host_list

ELASTIC_TIMEOUT_S = 600.0  # Horovod's default
LEASE_S = 2.5  # as between hosts
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

    @property
    def asked(self) -> str:
        """The option that makes the job elastic; empty: none does."""
        asking = {"--min-np": self.min_np, "--max-np": self.max_np, "--spares": self.spares}
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


def choose_np(options: ElasticOptions, cores: int) -> int:
    """Returns the number of ranks if -np is not given: one for each core, within the limits."""
    most = cores if options.max_np is None else min(cores, options.max_np)
    return max(most, options.min_np or 1)


def choose_limits(options: ElasticOptions, np: int) -> ElasticLimits | None:
    """Returns the limits of a job of `np` ranks, or None if it is not elastic.

    Raises LaunchError if the options contradict each other.
    """
    if not options.asked:
        _refuse_alone(options)
        return None
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
    )
    _check(limits)
    return limits


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
    }
    for name, value in alone.items():
        if value is not None:
            raise LaunchError(f"{name} goes with --min-np, --max-np or --spares: elastic jobs")


def _check(limits: ElasticLimits) -> None:
    if not 1 <= limits.min_np <= limits.np:
        raise LaunchError(
            f"--min-np must be between 1 and the number of ranks (-np), {limits.np}, not "
            f"{limits.min_np}"
        )
    if limits.max_np < limits.np:
        raise LaunchError(
            f"--max-np must be at least the number of ranks (-np), {limits.np}, not {limits.max_np}"
        )
    if limits.spares < 0:
        raise LaunchError(f"--spares must be at least 0, not {limits.spares}")
    if max(limits.max_np, limits.np + limits.spares) > host_list.LOCAL_RANKS_MAX:
        raise LaunchError(
            f"at most {host_list.LOCAL_RANKS_MAX} ranks and spares run on one host, not "
            f"{max(limits.max_np, limits.np + limits.spares)}"
        )
    if limits.reset_limit is not None and limits.reset_limit < 0:
        raise LaunchError(f"--reset-limit must be at least 0, not {limits.reset_limit}")
    if not limits.elastic_timeout_s > 0:
        raise LaunchError(
            f"--elastic-timeout must be more than 0 seconds, not {limits.elastic_timeout_s:g}"
        )
    if not limits.lease_s >= _LEASE_MIN_S:
        raise LaunchError(
            f"--lease must be at least {_LEASE_MIN_S:g} seconds, not {limits.lease_s:g}"
        )
