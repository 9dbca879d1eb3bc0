"""The options of elastic jobs of `ciranda run`, and what cannot be combined with them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from ciranda.launch.cli.run_options import RunOptions
from ciranda.launch.errors import LaunchError
from ciranda.launch.plan import elastic
from ciranda.launch.plan import hosts as host_list
from ciranda.launch.plan.elastic import ElasticLimits, ElasticOptions
from ciranda.launch.plan.hosts import Host, HostsFrom, HostSource, Place, SparePlace


def read(options: RunOptions, as_function: bool) -> ElasticOptions:
    """Returns the options of elastic jobs. Refuses options that cannot be given beside them."""
    changes = ElasticOptions(
        min_np=options.min_np,
        max_np=options.max_np,
        spares=options.spares,
        reset_limit=options.reset_limit,
        elastic_timeout=options.elastic_timeout,
        lease=options.lease,
        cooldown_range=options.blacklist_cooldown_range,
        host_discovery_script=options.host_discovery_script,
    )
    asked = changes.asked
    if options.slots_per_host is not None and options.host_discovery_script is None:
        raise LaunchError("--slots-per-host goes with --host-discovery-script")
    if not asked:
        return changes
    if as_function:
        raise LaunchError(f"{asked}: an elastic job runs a script: ciranda.run() has none")
    if has_servers(options):
        return changes
    if options.no_ssh:
        raise LaunchError(
            f"{asked}: in an elastic job one launcher starts the ranks of all hosts (-H); leave "
            "out --no-ssh"
        )
    if options.restarts is not None:
        raise LaunchError(
            f"{asked}: an elastic job starts lost ranks again; --reset-limit, and not --restarts, "
            "says how often"
        )
    return changes


def hosts_from(options: RunOptions, changes: ElasticOptions) -> HostsFrom | None:
    """Returns what names the hosts of an elastic job while it runs; None: they stay.

    A hostfile is read again when it changes.
    """
    script = options.host_discovery_script
    if script is None:
        is_file = options.hostfile is not None and os.path.isfile(options.hostfile)
        if not (is_file and changes.asked and options.hostfile) or has_servers(options):
            return None
        return HostsFrom(hostfile=os.path.abspath(options.hostfile))
    for other, value in (("-H", options.hosts), ("--hostfile", options.hostfile)):
        if value is not None:
            raise LaunchError(f"{other} and --host-discovery-script both name the hosts")
    if options.slots_per_host is not None and options.slots_per_host < 1:
        raise LaunchError(f"--slots-per-host must be at least 1, not {options.slots_per_host}")
    if not os.path.isfile(script) or not os.access(script, os.X_OK):
        raise LaunchError(
            f"--host-discovery-script {script}: no program is there; it is an executable file "
            "(chmod +x)"
        )
    return HostsFrom(script=os.path.abspath(script), slots_per_host=options.slots_per_host)


def discover(source: HostsFrom, options: RunOptions, host: str) -> HostSource:
    """Returns the hosts with which a job begins, once they are enough. Blocks."""
    from ciranda.launch.remote.discovery import wait_for_slots

    limit_s = options.elastic_timeout
    found = wait_for_slots(
        source,
        host,
        options.min_np or options.np or 1,
        elastic.ELASTIC_TIMEOUT_S if limit_s is None else limit_s,
        lambda text: click.echo(f"ciranda: {text}", err=True),
    )
    return HostSource(tuple(found), "--host-discovery-script")


def has_servers(options: RunOptions) -> bool:
    return options.ps is not None or options.ps_hosts is not None


def choose_worker_limits(options: RunOptions, changes: ElasticOptions, np: int) -> tuple[int, int]:
    """Returns how many of the `np` workers of a job with servers are enough, and the restarts."""
    if options.restarts is not None and changes.asked:
        raise LaunchError(
            f"{changes.asked} goes with --reset-limit, and not with --restarts, which says how "
            "often killed processes are started again"
        )
    limits = elastic.choose_worker_limits(changes, np)
    return limits if changes.asked else (np, options.restarts or 0)


def choose_spares(
    limits: ElasticLimits | None,
    ranks: Sequence[Place],
    hosts: Sequence[Host],
    source: str,
    *,
    are_counted: bool,
) -> Sequence[SparePlace]:
    """Returns the places of the spares: on free slots of the hosts, or beside the ranks here.

    `are_counted`: the hosts' slots are, as they are not on this host alone. `source`: what names
    the hosts.
    """
    if limits is None:
        return ()
    count = limits.processes - len(ranks)
    if not are_counted:
        return host_list.spares_beside(count, ranks)
    may_come = limits.hosts_may_come
    return host_list.assign_spares(count, ranks, hosts, source, hosts_may_come=may_come)
