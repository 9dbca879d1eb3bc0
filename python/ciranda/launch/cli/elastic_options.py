"""The options of elastic jobs of `ciranda run`, and what cannot be combined with them."""

from __future__ import annotations

from collections.abc import Sequence

from ciranda.launch.cli.run_options import RunOptions
from ciranda.launch.errors import LaunchError
from ciranda.launch.plan import elastic, launch_plan
from ciranda.launch.plan.elastic import ElasticLimits, ElasticOptions
from ciranda.launch.plan.hosts import Place


def read(options: RunOptions, as_function: bool) -> ElasticOptions:
    """Returns the options of elastic jobs. Refuses options that cannot be given beside them."""
    changes = ElasticOptions(
        min_np=options.min_np,
        max_np=options.max_np,
        spares=options.spares,
        reset_limit=options.reset_limit,
        elastic_timeout=options.elastic_timeout,
        lease=options.lease,
    )
    asked = changes.asked
    if not asked:
        return changes
    if as_function:
        raise LaunchError(f"{asked}: an elastic job runs a script: ciranda.run() has none")
    if options.no_ssh:
        raise LaunchError(f"{asked}: an elastic job runs on one host; leave out --no-ssh")
    if options.restarts is not None:
        raise LaunchError(
            f"{asked}: an elastic job starts lost ranks again; --reset-limit, and not --restarts, "
            "says how often"
        )
    of_servers = {
        "--ps": options.ps is not None,
        "--ps-hosts": options.ps_hosts is not None,
        "--coordinator": options.coordinator,
        "--evaluator": options.evaluator,
    }
    for name, is_given in of_servers.items():
        if is_given:
            raise LaunchError(
                f"{asked}: a job with parameter servers is not elastic; leave out {name}, or start "
                "lost workers again by --restarts"
            )
    return changes


def choose_limits(
    changes: ElasticOptions, ranks: Sequence[Place], host: str
) -> ElasticLimits | None:
    """Returns the limits of a job with these ranks, or None if it is not elastic."""
    others = [each.host for each in ranks if launch_plan.needs_agents([each], host)]
    if changes.asked and others:
        raise LaunchError(
            f"{changes.asked}: an elastic job runs on one host, and on none by ssh: "
            f"{others[0].destination}"
        )
    return elastic.choose_limits(changes, len(ranks))
