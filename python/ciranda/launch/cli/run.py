"""`ciranda run`: turns options and environment into a job or an error. Imports no torch."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ciranda.launch import call_files
from ciranda.launch.cli import elastic_options, run_options
from ciranda.launch.cli.run_options import RunOptions
from ciranda.launch.errors import EXIT_NOT_FOUND, LaunchError
from ciranda.launch.horovod import horovodrun
from ciranda.launch.plan import elastic, environment, launch_plan, slurm
from ciranda.launch.plan import hosts as host_list
from ciranda.launch.plan import nodes as own_nodes
from ciranda.launch.plan.elastic import ElasticLimits
from ciranda.launch.plan.environment import (
    CPU_OPERATIONS,
    GPU_OPERATIONS,
    HERE,
    NIC,
    PORT_RANGE,
    TLS,
    TRUSTED_NETWORK,
    JobPaths,
)
from ciranda.launch.plan.hosts import (
    Host,
    HostsFrom,
    HostSource,
    Place,
    ServerFiles,
    ServerPlace,
    SparePlace,
    parse_hostfile,
    parse_hosts,
)
from ciranda.launch.plan.launch_plan import LaunchPlan
from ciranda.launch.plan.nodes import Node
from ciranda.launch.plan.processes import COORDINATOR, EVALUATOR
from ciranda.launch.remote import meeting
from ciranda.launch.remote.meeting import Meeting, Ports
from ciranda.launch.remote.orders import allowed_environment
from ciranda.launch.run import local

if TYPE_CHECKING:
    from ciranda.launch.run.job import JobSettings

AS_FUNCTION = "ciranda.run()"  # the program's name when function.py starts it
SERVERS_MAX = 64

PlanIn = Callable[[JobPaths, Meeting | None], LaunchPlan]

_EXAMPLES = """\b
Examples:
  ciranda run -np 2 train.py --epochs 3
  ciranda run -np 4 -m package.train
  ciranda run --timeout 600 --log-dir logs -- ./a_program
"""


class _Run(click.Command):
    """Leaves all arguments from COMMAND on to COMMAND, also with `-m module`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        position = self._module_position(args)
        if position is not None:
            args = [*args[:position], "--", *args[position:]]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            answer = horovodrun.ANSWERS.get(error.option_name)
            if answer is None:
                raise
            raise click.UsageError(f"{error.option_name}: {answer}", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        run_options.write_help(self.get_params(ctx), ctx, formatter)

    def _module_position(self, args: Sequence[str]) -> int | None:
        takes_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        position = 0
        while position < len(args):
            argument = args[position]
            if argument == "-m":
                return position
            if argument == "--" or not argument.startswith("-"):
                return None
            position += 2 if argument in takes_value else 1
        return None


@click.command(
    cls=_Run,
    name="run",
    epilog=_EXAMPLES,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
@run_options.declare
@click.argument(
    "command",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="COMMAND [ARGS]...",
    shell_complete=run_options.complete_path,
)
@click.pass_context
def run_command(ctx: click.Context, /, **given: Any) -> None:
    """Run COMMAND as N ranks, on this host or on several.

    COMMAND is a .py file, `-m module`, or any program. Each rank finds its number, and the number
    of ranks, in the variables of ciranda, Horovod and torchrun.
    """
    from ciranda.launch.run.local_ranks import open_standard_streams  # not needed for --help

    open_standard_streams()  # before anything else is opened
    try:
        code = _run(ctx, *run_options.split(given))
    except LaunchError as error:
        for line in str(error).splitlines():
            click.echo(f"{ctx.command_path}: {line}", err=True)
        code = error.exit_code
    ctx.exit(code)


def _run(ctx: click.Context, options: RunOptions, of_horovodrun: Mapping[str, Any]) -> int:
    if options.timeout is not None and not options.timeout > 0:
        raise LaunchError(f"--timeout must be more than 0 seconds, not {options.timeout:g}")
    theirs = horovodrun.settle(ctx, of_horovodrun, options.gloo)
    for note in theirs.notes:
        click.echo(f"{ctx.command_path}: {note}", err=True)
    as_function = ctx.info_name == AS_FUNCTION
    cast = _cast(options, as_function)
    argv = local.resolve_command(options.command, os.get_exec_path())
    user = _user_environment(options, theirs)
    settings = _settings(ctx, options, theirs, cast.numbers)
    plan_in = partial(_plan, cast, argv, user, theirs.horovod_names)
    if options.dry_run:
        click.echo(_describe(plan_in, cast, options.log_dir))
        return 0
    if cast.by_agents:
        return _run_by_agents(plan_in, settings, options, user, theirs, as_function, cast)
    return _run_here(plan_in, settings, cast.node, options.log_dir)


# --- who takes part ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Cast:
    """The processes of a job, and where they run."""

    size: int  # ranks of the whole job
    ranks: Sequence[Place]  # the ranks that this launcher starts
    servers: Sequence[ServerPlace]
    server_files: ServerFiles
    roles: tuple[int, ...]  # COORDINATOR and EVALUATOR, if the job has them
    restarts: int
    min_np: int | None  # so many workers of servers are enough to go on; None: no servers
    host: str  # name of this host in the places
    cores: int  # of this host
    node: Node | None  # this host with --no-ssh; None without it
    by_agents: bool  # true if a process runs on another host or as another user
    elastic: ElasticLimits | None  # None: the number of ranks does not change
    spares: Sequence[SparePlace]  # of an elastic job
    hosts: Sequence[Host]  # all that are named, of an elastic job
    hosts_from: HostsFrom | None  # what names them while the job runs; None: they stay

    @property
    def numbers(self) -> int:
        """How many numbers ranks and spares have together."""
        return self.size + len(self.spares)


def _cast(options: RunOptions, as_function: bool) -> _Cast:
    host, cores = os.uname().nodename, environment.count_cores()
    changes = elastic_options.read(options, as_function)
    hosts_from = elastic_options.hosts_from(options, changes)
    discovers = hosts_from is not None and bool(hosts_from.script)
    if hosts_from is not None and discovers:
        named: HostSource | None = elastic_options.discover(hosts_from, options, host)
    else:
        named = named_hosts(options.hosts, options.hostfile)
    node = _node(options)
    if node is None:
        named = named or slurm.allocated_hosts(os.environ)
        np = options.np
        slots = cores if named is None else sum(each.slots for each in named.hosts)
        if np is None and (named is None or changes.asked):
            np = elastic.choose_np(changes, slots)
        elif np is not None and discovers:
            np = min(np, slots)
        all_places = ranks = launch_plan.choose_places(np, named, cores=cores, host=host)
    else:
        all_places = own_nodes.choose_places(options.np, named, node, host=host)
        ranks = own_nodes.places_on(node, all_places)
        host = ranks[0].host.name
    servers = _servers(options, all_places, node, host)
    server_files = _server_files(options, servers)
    if servers:
        min_np, restarts = elastic_options.choose_worker_limits(options, changes, len(all_places))
    else:
        min_np, restarts = None, 0
    all_hosts = host_list.gather_here(named.hosts, host) if named is not None else ()
    has_others = launch_plan.has_other_hosts(all_hosts, host)
    hosts_may_come = discovers or (hosts_from is not None and has_others)
    limits = (
        None
        if servers
        else elastic.choose_limits(changes, len(ranks), hosts_may_come=hosts_may_come)
    )
    source = named.words if named is not None else ""
    counted = has_others or hosts_may_come
    spares = elastic_options.choose_spares(limits, ranks, all_hosts, source, are_counted=counted)
    on_hosts = [*(each.host for each in ranks), *(each.host for each in spares)]
    return _Cast(
        size=len(all_places),
        ranks=ranks,
        servers=servers,
        server_files=server_files,
        roles=_roles(options, servers, server_files, as_function),
        restarts=restarts,
        min_np=min_np,
        host=host,
        cores=cores,
        node=node,
        by_agents=(node is None and launch_plan.has_other_hosts(on_hosts, host))
        or any(each.host.name != host for each in servers)
        or hosts_may_come,
        elastic=limits,
        spares=spares,
        hosts=all_hosts if limits is not None else (),
        hosts_from=hosts_from if hosts_may_come else None,
    )


def named_hosts(hosts: str | None, hostfile: str | None) -> HostSource | None:
    """Returns the hosts that -H or --hostfile names; None without either."""
    if hosts is not None and hostfile is not None:
        raise LaunchError("-H and --hostfile both name the hosts; give one of them")
    if hosts is not None:
        return HostSource(parse_hosts(hosts, "-H"), "-H")
    if hostfile is None:
        return None
    name = "standard input" if hostfile == "-" else hostfile
    return HostSource(parse_hostfile(_read_text(hostfile, "--hostfile"), name), name)


def _node(options: RunOptions) -> Node | None:
    """Returns this host's node with --no-ssh; None without it."""
    if options.no_ssh:
        return own_nodes.parse_node(
            options.node_rank, options.nodes, options.rendezvous, options.key_file, os.environ
        )
    given = {
        "--nodes": options.nodes,
        "--node-rank": options.node_rank,
        "--rendezvous": options.rendezvous,
        "--key-file": options.key_file,
    }
    for option, value in given.items():
        if value is not None:
            raise LaunchError(f"{option} goes with --no-ssh; without it, ssh starts all hosts")
    return None


def _servers(
    options: RunOptions, ranks: Sequence[Place], node: Node | None, host: str
) -> Sequence[ServerPlace]:
    """Returns the places of the parameter servers; () without servers."""
    restarts = options.restarts
    if options.ps is None and options.ps_hosts is None:
        if restarts is not None:
            raise LaunchError(
                "--restarts goes with --ps: ranks that reduce gradients among themselves cannot "
                "come back yet"
            )
        return ()
    named = parse_hosts(options.ps_hosts, "--ps-hosts") if options.ps_hosts is not None else ()
    named = host_list.gather_here(named, host)
    count = sum(each.slots for each in named) if options.ps is None else options.ps
    if not 1 <= count <= SERVERS_MAX:
        raise LaunchError(f"--ps must be 1 to {SERVERS_MAX} servers, not {count}")
    if restarts is not None and restarts < 0:
        raise LaunchError(f"--restarts must be at least 0, not {restarts}")
    if node is not None and node.count > 1:
        raise LaunchError(
            "--ps: without ssh nobody tells all hosts where servers are; start them by hand: "
            "ciranda-ps --help says how"
        )
    if len(ranks) > host_list.LOCAL_RANKS_MAX:
        raise LaunchError(
            f"--ps: servers have at most {host_list.LOCAL_RANKS_MAX} workers, not {len(ranks)}"
        )
    if not os.access(local.SERVER_PROGRAM, os.X_OK):
        raise LaunchError(
            f"--ps: '{local.SERVER_PROGRAM}' is missing; install ciranda anew", EXIT_NOT_FOUND
        )
    return host_list.assign_servers(count, ranks, named)


def _server_files(options: RunOptions, servers: Sequence[ServerPlace]) -> ServerFiles:
    """Returns the files of the servers. If there is no --ps-dir, a lost server ends the job."""
    every = options.checkpoint_every
    if options.durability is not None and options.ps_dir is None:
        raise LaunchError("--durability goes with --ps-dir, where servers keep what they hold")
    if options.resume and options.ps_dir is None:
        raise LaunchError("--resume goes with --ps-dir, where the job before has left its state")
    if every is not None and options.checkpoint_dir is None:
        raise LaunchError("--checkpoint-every goes with --checkpoint-dir, where checkpoints go")
    if every is not None and not re.fullmatch("[1-9][0-9]{0,8}s?", every):
        raise LaunchError(
            "--checkpoint-every must be a number of pushes, such as 1000, or of seconds, such as "
            f"60s, not {every!r}"
        )
    folders = {
        "--ps-dir": options.ps_dir,
        "--checkpoint-dir": options.checkpoint_dir,
        "--restore": options.restore,
    }
    paths = {name: os.path.abspath(path) for name, path in folders.items() if path is not None}
    if paths and not servers:
        raise LaunchError(f"{next(iter(paths))} goes with --ps, the number of servers")
    return ServerFiles(
        state=paths.get("--ps-dir"),
        resume=options.resume,
        durability=options.durability or "log",
        checkpoints=paths.get("--checkpoint-dir"),
        checkpoint_every=every,
        restore=paths.get("--restore"),
    )


def _roles(
    options: RunOptions,
    servers: Sequence[ServerPlace],
    server_files: ServerFiles,
    as_function: bool,
) -> tuple[int, ...]:
    """Returns the numbers of the processes that run COMMAND but are no ranks."""
    if options.evaluator and server_files.checkpoints is None:
        raise LaunchError("--evaluator goes with --checkpoint-dir, the checkpoints that it scores")
    if options.coordinator and not servers:
        raise LaunchError("--coordinator goes with --ps, for its workers' parameters")
    roles = {"--coordinator": COORDINATOR} if options.coordinator else {}
    roles |= {"--evaluator": EVALUATOR} if options.evaluator else {}
    if roles and as_function:
        raise LaunchError(
            f"{next(iter(roles))} runs a script: ciranda.run() has none; start it by ciranda run"
        )
    return tuple(roles.values())


# --- what the ranks find in their environment --------------------------------------------------


def _user_environment(options: RunOptions, theirs: horovodrun.Settled) -> dict[str, str]:
    """Returns the variables of options: -x overrides --env-file, other options override both."""
    user: dict[str, str] = {}
    for name in options.env_file:
        user.update(environment.parse_env_file(_read_text(name, "--env-file"), name))
    values, missing = environment.parse_assignments(options.assign, os.environ)
    for name in missing:
        click.echo(f"ciranda: -x {name}: not set here, so not set for the ranks", err=True)
    networks = ",".join(each for each in (options.nic, theirs.nic) if each)
    return {
        **user,
        **values,
        **theirs.variables,
        **_network(networks or None, options.port_range, options.tls),
        **_operations(options, theirs.gloo),
    }


def _network(nic: str | None, port_range: str | None, tls: bool) -> dict[str, str]:
    """Returns the variables of the network between hosts."""
    if port_range is not None:
        meeting.parse_ports(port_range, "--port-range")
    return _given({NIC: nic, PORT_RANGE: port_range, TLS: "1" if tls else None})


def _operations(options: RunOptions, gloo: bool) -> dict[str, str]:
    """Returns the variables that choose backends."""
    cpu = options.cpu_operations
    if gloo and cpu not in (None, "gloo"):
        raise LaunchError(f"--gloo and --cpu-operations {cpu} name two backends; give one of them")
    return _given(
        {
            CPU_OPERATIONS: "gloo" if gloo else cpu,
            GPU_OPERATIONS: options.gpu_operations,
            TRUSTED_NETWORK: "1" if options.trusted_network else None,
        }
    )


def _given(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: text for name, text in values.items() if text is not None}


def _read_text(name: str, option: str) -> str:
    """Returns the text of a file; `-` is stdin."""
    try:
        with open(0 if name == "-" else name, encoding="utf-8", closefd=name != "-") as file:
            return file.read()
    except OSError as error:
        raise LaunchError(f"{option} {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LaunchError(f"{option} {name}: not UTF-8 text") from error


# --- the job -----------------------------------------------------------------------------------


def _plan(
    cast: _Cast,
    argv: Sequence[str],
    user: Mapping[str, str],
    horovod_names: bool,
    paths: JobPaths,
    met: Meeting | None,
) -> LaunchPlan:
    return launch_plan.plan_launch(
        argv,
        ranks=cast.ranks,
        size=cast.size,
        cores=cast.cores,
        host=cast.host,
        paths=paths,
        inherited=os.environ,
        user=user,
        columns=_columns(cast.size),
        meeting=met,
        servers=cast.servers,
        servers_at=[HERE] * len(cast.servers),
        server_program=local.SERVER_PROGRAM,
        server_files=cast.server_files,
        restarts=cast.restarts,
        min_np=cast.min_np,
        roles=cast.roles,
        horovod_names=horovod_names,
        elastic=cast.elastic,
        spares=cast.spares,
    )


def _describe(plan_in: PlanIn, cast: _Cast, log_dir: str | None) -> str:
    """Returns the text that --dry-run prints."""
    logs = os.path.abspath(log_dir) if log_dir else "<folder made at the start>"
    paths = JobPaths("<drawn at the start>", "<private folder made at the start>", logs)
    plan = plan_in(paths, own_nodes.shown_meeting(cast.node))
    return launch_plan.describe(plan, by_agents=cast.by_agents)


def _settings(
    ctx: click.Context, options: RunOptions, theirs: horovodrun.Settled, numbers: int
) -> JobSettings:
    from ciranda.launch.run.job import JobSettings

    shown = options.show_ranks
    has_colours = not os.environ.get("NO_COLOR") and _terminal_has_colours()
    return JobSettings(
        rerun=_rerun(ctx, options.command),
        timeout_s=options.timeout,
        shown=None if shown is None else launch_plan.parse_ranks(shown, numbers),
        colour=not options.no_color and has_colours,
        verbose=options.verbose or theirs.verbose,
        keep_logs=options.log_dir is not None,
        output_dir=theirs.output_dir,
        timestamps=theirs.timestamps,
    )


def _run_here(
    plan_in: PlanIn, settings: JobSettings, node: Node | None, log_dir: str | None
) -> int:
    """Runs the ranks of this host: the whole job, or this node's share."""
    from ciranda.launch.run.folders import make_log_dir, private_folder
    from ciranda.launch.run.job import draw_job_id, run_job

    met = None if node is None else own_nodes.open_meeting(node)
    job_id = draw_job_id() if met is None else meeting.job_id_of(met.key)
    with private_folder() as job_dir:
        paths = JobPaths(job_id, job_dir, make_log_dir(log_dir))
        return run_job(plan_in(paths, met), settings)


def _run_by_agents(
    plan_in: PlanIn,
    settings: JobSettings,
    options: RunOptions,
    user: Mapping[str, str],
    theirs: horovodrun.Settled,
    as_function: bool,
    cast: _Cast,
) -> int:
    """Runs the job through agents, one on each host."""
    from ciranda.launch.remote import host_agents
    from ciranda.launch.run import process_tree
    from ciranda.launch.run.folders import make_log_dir
    from ciranda.launch.run.job import draw_job_id, run_job

    process_tree.leave_no_core()
    settled = {**os.environ, **user}
    ports = settled.get(PORT_RANGE)
    plan = plan_in(JobPaths(draw_job_id(), "", make_log_dir(options.log_dir)), None)
    task = host_agents.Task(
        plan=plan,
        folder=os.getcwd(),
        environment=allowed_environment(os.environ),
        user=user,
        columns=_columns(plan.size),
        key=meeting.draw_key() if cast.hosts_from or _has_several_hosts(plan) else b"",
        nic=settled.get(NIC, ""),
        ports=meeting.parse_ports(ports, PORT_RANGE) if ports else Ports(),
        interpreter=options.python or sys.executable,
        ssh_options=theirs.ssh_options,
        horovod_names=theirs.horovod_names,
        call_folder=os.environ.get(call_files.FOLDER, "") if as_function else "",
        spares=cast.spares,
        hosts=cast.hosts,
        hosts_from=cast.hosts_from,
    )
    if plan.elastic is not None:
        from ciranda.launch.remote.elastic_agents import run_elastic  # needs a compiled module

        return run_job(plan, settings, partial(run_elastic, task))
    return run_job(plan, settings, partial(host_agents.HostAgents, task))


def _has_several_hosts(plan: LaunchPlan) -> bool:
    return len({each.place.host_index for each in plan.processes}) > 1


def _columns(size: int) -> int | None:
    """Returns the columns left for a bar after the prefix; None if stderr is no terminal."""
    from ciranda.launch.run.console import terminal_width

    if not os.isatty(2):
        return None
    return max(20, terminal_width(2) - len(f"[{size - 1}] ") - 1)


def _terminal_has_colours() -> bool:
    return os.environ.get("TERM", "") not in ("", "dumb")


def _rerun(ctx: click.Context, command: Sequence[str]) -> str:
    """Returns the command line without the values of -x, which may be secret."""
    if ctx.info_name == AS_FUNCTION:
        return ""
    words = ctx.command_path.split()
    for option in ctx.command.params:
        name = option.name or ""
        value = ctx.params.get(name)
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given or not isinstance(option, click.Option):
            continue
        for each in (value or ()) if option.multiple else (value,):
            words.append(option.opts[0])
            if name == "assign":
                variable, equals, _ = str(each).partition("=")
                words.append(f"{variable}=..." if equals else variable)
            elif not option.is_flag:
                parts: Any = each if option.nargs > 1 else (each,)
                words += [str(part) for part in parts]
    return shlex.join([*words, *command])
