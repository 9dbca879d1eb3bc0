"""`ciranda doctor`: visits hosts, judges the findings, runs an all-reduce. Imports no torch."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

import ciranda
from ciranda.doctor import hosts_checks, job, job_checks, lines, machine_checks, visit
from ciranda.doctor.host_checks import host_lines
from ciranda.doctor.hosts_checks import Found, Reached, hosts_lines
from ciranda.doctor.lines import Line, Status
from ciranda.doctor.setting import Setting
from ciranda.launch.errors import LaunchError
from ciranda.launch.plan import hosts as host_list
from ciranda.launch.plan import slurm
from ciranda.launch.plan.environment import count_cores
from ciranda.launch.plan.hosts import Host
from ciranda.launch.remote.meeting import Ports, parse_ports

_RANKS_UNNAMED_MAX = 8  # if no slots are named; importing torch in more ranks takes longer
_RANKS_MIN = 2  # one rank would reduce nothing
_EXIT_FAILED = 1

_EXAMPLES = """\b
Examples:
  ciranda doctor
  ciranda doctor -H node1:2,node2:2
  ciranda doctor --hostfile hosts --nic 10.0.0.0/8 --port-range 20000-20099
"""


@click.command(
    name="doctor",
    epilog=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("-H", "--hosts", metavar="HOST:N,...", help="Hosts, and how many ranks fit on each.")
@click.option(
    "--hostfile", metavar="FILE", help="The same from a file of lines `HOST slots=N`; - is stdin."
)
@click.option(
    "--python", metavar="FILE", help="Path of Python on the other hosts [as on this host]."
)
@click.option(
    "--nic", metavar="PATTERNS", help="Use these networks between hosts: eth0,10.0.0.0/8,!docker0."
)
@click.option("--port-range", metavar="A-B", help="Listen only on ports from A to B [on any port].")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.pass_context
def doctor_command(
    ctx: click.Context,
    /,
    hosts: str | None,
    hostfile: str | None,
    python: str | None,
    nic: str | None,
    port_range: str | None,
    as_json: bool,
) -> None:
    """Find problems on this host, or between hosts, and say what mends each.

    The last check is a verified all-reduce on all slots. The doctor changes no setting and leaves
    no file. The exit code is 1 if a check has failed.
    """
    try:
        ports = parse_ports(port_range, "--port-range") if port_range else Ports()
        examined = _hosts(hosts, hostfile)
    except LaunchError as error:
        click.echo(f"{ctx.command_path}: {error}", err=True)
        ctx.exit(error.exit_code)
    options = {"--python": python, "--nic": nic, "--port-range": port_range}
    given = [word for name, text in options.items() if text for word in (name, text)]
    said, figures = _examine(examined, python or sys.executable, nic or "", ports, given)
    said = lines.in_order(said)
    if as_json:
        click.echo(json.dumps(_as_json(examined, said, figures), indent=2))
    else:
        click.echo(f"ciranda {ciranda.__version__}, {', '.join(str(host) for host in examined)}")
        for text in lines.table(said, len(examined)):
            click.echo(text)
        click.echo(f"\n{lines.summary(said)}")
    ctx.exit(_EXIT_FAILED if lines.count_of(said, Status.FAIL) else 0)


def _hosts(hosts: str | None, hostfile: str | None) -> tuple[Host, ...]:
    """Returns the hosts of -H, --hostfile or Slurm, otherwise this host."""
    from ciranda.launch.cli.run import named_hosts

    here = os.uname().nodename
    named = named_hosts(hosts, hostfile) or slurm.allocated_hosts(os.environ)
    if named is None:
        return (Host(here, min(count_cores(), _RANKS_UNNAMED_MAX)),)
    return host_list.gather_here(named.hosts, here)


def _examine(
    hosts: Sequence[Host], python: str, nic: str, ports: Ports, options: Sequence[str]
) -> tuple[list[Line], dict[str, Any]]:
    """Returns all lines, and the measured figures."""
    here = os.uname().nodename
    found = _visit_all(hosts, here, python, nic, ports)
    alone = len(hosts) == 1
    said = [] if alone and not found.reached[hosts[0].name].problem else hosts_lines(found)
    for host in hosts:
        if host.name in found.facts:
            setting = Setting(slots=host.slots, alone=alone, nic=nic, ports=ports)
            name = "" if alone else host.name
            said += host_lines(found.facts[host.name], setting, name)
    figures: dict[str, Any] = {
        "clock_offset_s": {host: dict(clock) for host, clock in found.clocks.items()},
        "tcp": [
            {
                "from": caller,
                "to": called,
                **{k: way[k] for k in ("rtt_s", "bytes_per_s") if k in way},
            }
            for (caller, called), way in found.ways.items()
        ],
    }
    if lines.count_of(said, Status.FAIL):
        return [*said, *job_checks.skipped_job(lines.in_order(said))], figures
    if alone:
        hosts = [replace(hosts[0], slots=max(_RANKS_MIN, hosts[0].slots))]
    expected = _expected(hosts, found)
    size_bytes = job_checks.large_bytes(expected.bytes_per_s)
    ran = job.run_job(hosts, options, size_bytes)
    rerun = shlex.join(
        ["ciranda", "run", "-H", ",".join(map(str, hosts)), *options, "-m", "ciranda.doctor.worker"]
    )
    said += job_checks.job_lines(ran, expected, rerun)
    return said, figures | {"allreduce": job_checks.job_figures(ran)}


def _visit_all(hosts: Sequence[Host], here: str, python: str, nic: str, ports: Ports) -> Found:
    """Looks at each host, then at the ways between hosts."""
    with visit.visits(hosts, here, python) as (visited, problems):
        reached = {host: Reached(problem=str(e), by_ssh=e.by_ssh) for host, e in problems.items()}
        reached |= {
            each.host.name: Reached(here=each.here, greeted_s=each.greeted_s) for each in visited
        }
        names = [host.name for host in hosts]
        facts = visit.facts_of(visited, names=names, nic=nic, ports=ports, folder=_folder())
        for name in [name for name, each in facts.items() if "why_not" in each]:
            reached[name] = Reached(problem=facts.pop(name)["why_not"])
        there = [each for each in visited if each.host.name in facts]
        clocks = {each.host.name: each.clock_offset() for each in there if not each.here}
        without_ssh = next((each.host.name for each in there if each.here), "")
        addresses = hosts_checks.choose_addresses(facts, without_ssh, nic)
        ways = visit.call_each_other(there, addresses, ports)
    return Found({name: reached[name] for name in names}, facts, clocks, addresses, ways)


def _folder() -> str:
    with contextlib.suppress(OSError):
        return os.getcwd()
    return "/"


def _expected(hosts: Sequence[Host], found: Found) -> job_checks.Expected:
    ways = [way for way in found.ways.values() if "bytes_per_s" in way]
    return job_checks.Expected(
        host_count=len(hosts),
        takes_turns=any(
            host.slots > found.facts[host.name].get("cores", {}).get("usable", host.slots)
            for host in hosts
        ),
        busy=any(machine_checks.is_busy(facts) for facts in found.facts.values()),
        rtt_s=max((way["rtt_s"] for way in ways), default=None),
        bytes_per_s=min((way["bytes_per_s"] for way in ways), default=None),
    )


def _as_json(
    hosts: Sequence[Host], said: Sequence[Line], figures: dict[str, Any]
) -> dict[str, Any]:
    counts = {status.value: lines.count_of(said, status) for status in Status}
    return {
        "ciranda": ciranda.__version__,
        "hosts": [{"host": host.destination, "slots": host.slots} for host in hosts],
        "lines": [each.as_json() for each in said],
        "figures": figures,
        "summary": counts,
    }
