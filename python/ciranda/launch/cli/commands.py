"""The commands `ciranda` and `cirandarun`: options in, one job out. Imports no torch."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ciranda import _build, cmake_prefix_path
from ciranda.launch import call_files
from ciranda.launch.errors import EXIT_NOT_FOUND, LaunchError
from ciranda.launch.horovod import horovodrun
from ciranda.launch.plan import environment, launch_plan, slurm
from ciranda.launch.plan import hosts as host_list
from ciranda.launch.plan import nodes as own_nodes
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
    HostSource,
    Place,
    ServerFiles,
    ServerPlace,
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

AS_FUNCTION = "ciranda.run()"  # by which name function.py starts it
SERVERS_MAX = 64

PlanIn = Callable[[JobPaths, Meeting | None], LaunchPlan]

if TYPE_CHECKING:
    from ciranda.launch.run.job import JobSettings

_EXAMPLES = """\b
Examples:
  ciranda run -np 2 train.py --epochs 3
  ciranda run -np 4 -m package.train
  ciranda run --timeout 600 --log-dir logs -- ./a_program
"""


class _Run(click.Command):
    """Everything from the command on belongs to the command, also after `-m module`."""

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


def _print_backends(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from ciranda.launch.cli.check import backend_table  # imports torch

    try:
        click.echo(backend_table())
    except LaunchError as error:
        click.echo(f"{context.command_path}: {error}", err=True)
        context.exit(error.exit_code)
    context.exit()


@click.command(
    cls=_Run,
    name="run",
    epilog=_EXAMPLES,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
@click.option("-np", "--np", "--num-proc", "np", type=int, metavar="N", help="Ranks [cores].")
@click.option("-H", "--hosts", metavar="HOST:N,...", help="Hosts and slots, as horovodrun's.")
@click.option("--hostfile", "-hostfile", metavar="FILE", help="Lines: HOST slots=N; - is stdin.")
@click.option("--python", metavar="FILE", help="The Python of other hosts [at the same place].")
@click.option("--no-ssh", is_flag=True, help="Start this host's ranks only; each host does so.")
@click.option("--nodes", type=int, metavar="N", help="With --no-ssh: how many hosts [srun's].")
@click.option(
    "--node-rank", type=int, metavar="K", help="With --no-ssh: which one this is, from 0."
)
@click.option(
    "--rendezvous", metavar="HOST:PORT", help="With --no-ssh: where node 0 listens [srun's first]."
)
@click.option("--key-file", metavar="FILE", help="With --no-ssh: the job's key (ciranda key FILE).")
@click.option("--nic", metavar="PATTERNS", help="Networks between hosts: eth0,10.0.0.0/8,!docker0.")
@click.option("--port-range", metavar="A-B", help="Ports to listen on [any].")
@click.option("--tls", is_flag=True, help="Encrypt all that goes from host to host.")
@click.option(
    "--cpu-operations",
    type=click.Choice(["auto", "shm", "ring", *_build.CPU_BACKENDS]),
    help="What runs operations on CPU tensors [auto: our own].",
)
@click.option("--gloo", is_flag=True, help="The same as --cpu-operations gloo.")
@click.option(
    "--gpu-operations",
    type=click.Choice(["auto", *_build.GPU_BACKENDS]),
    help="What runs operations on GPU tensors [auto: nccl].",
)
@click.option("--trusted-network", is_flag=True, help="Nobody else is on it: protect no data.")
@click.option("--ps", type=int, metavar="N", help="Parameter servers, for backend='ps'.")
@click.option("--ps-hosts", metavar="H1,H2:2", help="Hosts of the servers [those of the ranks].")
@click.option("--ps-dir", metavar="DIR", help="Where servers keep what they hold, on their hosts.")
@click.option(
    "--resume",
    is_flag=True,
    help="With --ps-dir: go on with what a job that is gone has left there.",
)
@click.option(
    "--durability",
    type=click.Choice(["memory", "log", "disk"]),
    help="With --ps-dir: what outlives a killed server, see docs/parameter-server.md [log].",
)
@click.option(
    "--checkpoint-dir", metavar="DIR", help="Where servers make checkpoints, on all their hosts."
)
@click.option(
    "--checkpoint-every", metavar="N|Ns", help="After N pushes, or after N seconds [1000]."
)
@click.option("--restore", metavar="DIR", help="A checkpoint that servers begin with.")
@click.option(
    "--evaluator",
    is_flag=True,
    help="COMMAND in one process more, to score checkpoints: see docs/parameter-server.md.",
)
@click.option(
    "--coordinator",
    is_flag=True,
    help="With --ps: COMMAND in one process more, which gives tasks to the others.",
)
@click.option(
    "--restarts",
    type=int,
    metavar="N",
    help="With --ps: start killed ranks again, with --ps-dir servers too [0].",
)
@click.option("--timeout", type=float, metavar="SECONDS", help="End the whole job after that.")
@click.option("-x", "assign", multiple=True, metavar="VAR[=VALUE]", help="Set it for all ranks.")
@click.option("--env-file", multiple=True, metavar="FILE", help="KEY=VALUE lines for all ranks.")
@click.option("--log-dir", metavar="DIR", help="Keep a log file of each rank in DIR.")
@click.option("--show-ranks", metavar="0,3-5", help="Ranks shown on the console [all].")
@click.option("--no-color", is_flag=True, help="Plain prefixes; also with NO_COLOR set.")
@click.option("--dry-run", is_flag=True, help="Print who would run what; start nothing.")
@click.option("--verbose", is_flag=True, help="Say what the launcher does.")
@click.option(
    "--check",
    "--check-build",
    "-cb",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_backends,
    help="Print which backends there are, and exit.",
)
@horovodrun.options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND [ARGS]...")
@click.pass_context
def run_command(
    ctx: click.Context,
    /,
    np: int | None,
    hosts: str | None,
    hostfile: str | None,
    python: str | None,
    no_ssh: bool,
    nodes: int | None,
    node_rank: int | None,
    rendezvous: str | None,
    key_file: str | None,
    nic: str | None,
    port_range: str | None,
    tls: bool,
    cpu_operations: str | None,
    gloo: bool,
    gpu_operations: str | None,
    trusted_network: bool,
    ps: int | None,
    ps_hosts: str | None,
    ps_dir: str | None,
    resume: bool,
    durability: str | None,
    checkpoint_dir: str | None,
    checkpoint_every: str | None,
    restore: str | None,
    evaluator: bool,
    coordinator: bool,
    restarts: int | None,
    timeout: float | None,
    assign: tuple[str, ...],
    env_file: tuple[str, ...],
    log_dir: str | None,
    show_ranks: str | None,
    no_color: bool,
    dry_run: bool,
    verbose: bool,
    command: tuple[str, ...],
    **of_horovodrun: object,
) -> None:
    """Run COMMAND as N ranks on this host.

    COMMAND is a .py file, `-m module`, or any program. Every rank finds its number and the size
    in the variables of ciranda, Horovod and torchrun.
    """
    from ciranda.launch.run.job import JobSettings  # not needed for --help
    from ciranda.launch.run.local_ranks import open_standard_streams

    open_standard_streams()  # before anything else is opened
    try:
        if timeout is not None and not timeout > 0:
            raise LaunchError(f"--timeout must be more than 0 seconds, not {timeout:g}")
        theirs = horovodrun.settle(ctx, of_horovodrun, gloo)
        for note in theirs.notes:
            click.echo(f"{ctx.command_path}: {note}", err=True)
        as_function = ctx.info_name == AS_FUNCTION
        host, cores = os.uname().nodename, environment.count_cores()
        named = named_hosts(hosts, hostfile)
        node = _node(no_ssh, node_rank, nodes, rendezvous, key_file)
        if node is None:
            named = named or slurm.allocated_hosts(os.environ)
            all_places = ranks = launch_plan.choose_places(np, named, cores=cores, host=host)
        else:
            all_places = own_nodes.choose_places(np, named, node, host=host)
            ranks = own_nodes.places_on(node, all_places)
            host = ranks[0].host.name
        size = len(all_places)
        by_agents = node is None and launch_plan.needs_agents(ranks, host)
        servers = _servers(ps, ps_hosts, restarts, all_places, node, host)
        server_files = _server_files(
            servers, ps_dir, resume, durability, checkpoint_dir, checkpoint_every, restore
        )
        by_agents = by_agents or any(each.host.name != host for each in servers)
        if evaluator and server_files.checkpoints is None:
            raise LaunchError(
                "--evaluator goes with --checkpoint-dir, the checkpoints that it scores"
            )
        if coordinator and not servers:
            raise LaunchError("--coordinator goes with --ps, for its workers' parameters")
        roles = {"--coordinator": COORDINATOR} if coordinator else {}
        roles |= {"--evaluator": EVALUATOR} if evaluator else {}
        if roles and as_function:
            raise LaunchError(
                f"{next(iter(roles))} runs a script: ciranda.run() has none; start it by "
                "ciranda run"
            )
        shown = None if show_ranks is None else launch_plan.parse_ranks(show_ranks, size)
        argv = local.resolve_command(command, os.get_exec_path())
        networks = ",".join(each for each in (nic, theirs.nic) if each)
        options = {**theirs.variables, **_network(networks or None, port_range, tls)}
        options |= _operations(cpu_operations, theirs.gloo, gpu_operations, trusted_network)
        user = _user_environment(env_file, assign, options)

        def plan_in(paths: JobPaths, met: Meeting | None) -> LaunchPlan:
            return launch_plan.plan_launch(
                argv,
                ranks=ranks,
                size=size,
                cores=cores,
                host=host,
                paths=paths,
                inherited=os.environ,
                user=user,
                columns=_columns(size),
                meeting=met,
                servers=servers,
                servers_at=[HERE] * len(servers),
                server_program=local.SERVER_PROGRAM,
                server_files=server_files,
                restarts=restarts or 0,
                roles=tuple(roles.values()),
                horovod_names=theirs.horovod_names,
            )

        if dry_run:
            logs = os.path.abspath(log_dir) if log_dir else "<folder made at the start>"
            paths = JobPaths("<drawn at the start>", "<private folder made at the start>", logs)
            plan = plan_in(paths, own_nodes.shown_meeting(node))
            click.echo(launch_plan.describe(plan, by_agents=by_agents))
            return
        settings = JobSettings(
            rerun=_rerun(ctx, command),
            timeout_s=timeout,
            shown=shown,
            colour=not no_color and not os.environ.get("NO_COLOR") and _terminal_has_colours(),
            verbose=verbose or theirs.verbose,
            keep_logs=log_dir is not None,
            output_dir=theirs.output_dir,
            timestamps=theirs.timestamps,
        )
        if by_agents:
            code = _run_by_agents(plan_in, settings, user, log_dir, python, theirs, as_function)
        else:
            code = _run_here(plan_in, settings, node, log_dir)
    except LaunchError as error:
        for line in str(error).splitlines():
            click.echo(f"{ctx.command_path}: {line}", err=True)
        code = error.exit_code
    ctx.exit(code)


def _run_here(
    plan_in: PlanIn, settings: JobSettings, node: Node | None, log_dir: str | None
) -> int:
    """Runs the ranks of this host: all there are, or its share."""
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
    user: Mapping[str, str],
    log_dir: str | None,
    python: str | None,
    theirs: horovodrun.Settled,
    as_function: bool,
) -> int:
    """Runs a job of which other hosts have ranks."""
    from ciranda.launch.remote import host_agents
    from ciranda.launch.run import process_tree
    from ciranda.launch.run.folders import make_log_dir
    from ciranda.launch.run.job import draw_job_id, run_job

    process_tree.leave_no_core()
    settled = {**os.environ, **user}
    ports = settled.get(PORT_RANGE)
    plan = plan_in(JobPaths(draw_job_id(), "", make_log_dir(log_dir)), None)
    task = host_agents.Task(
        plan=plan,
        folder=os.getcwd(),
        environment=allowed_environment(os.environ),
        user=user,
        columns=_columns(plan.size),
        key=meeting.draw_key() if _has_several_hosts(plan) else b"",
        nic=settled.get(NIC, ""),
        ports=meeting.parse_ports(ports, PORT_RANGE) if ports else Ports(),
        interpreter=python or sys.executable,
        ssh_options=theirs.ssh_options,
        horovod_names=theirs.horovod_names,
        call_folder=os.environ.get(call_files.FOLDER, "") if as_function else "",
    )
    return run_job(plan, settings, partial(host_agents.HostAgents, task))


def _node(
    no_ssh: bool,
    node_rank: int | None,
    nodes: int | None,
    rendezvous: str | None,
    key_file: str | None,
) -> Node | None:
    """This host among those of --no-ssh; None without it."""
    if no_ssh:
        return own_nodes.parse_node(node_rank, nodes, rendezvous, key_file, os.environ)
    given = {
        "--nodes": nodes,
        "--node-rank": node_rank,
        "--rendezvous": rendezvous,
        "--key-file": key_file,
    }
    for option, value in given.items():
        if value is not None:
            raise LaunchError(f"{option} goes with --no-ssh; without it, ssh starts all hosts")
    return None


def as_server() -> None:
    """`ciranda-ps`: a parameter server started by hand."""
    try:
        os.execv(local.SERVER_PROGRAM, [local.SERVER_PROGRAM, *sys.argv[1:]])  # noqa: S606 - no shell
    except OSError as error:
        click.echo(
            f"ciranda-ps: {local.SERVER_PROGRAM}: {error.strerror}; install ciranda anew", err=True
        )
        sys.exit(EXIT_NOT_FOUND)


def _servers(
    ps: int | None,
    ps_hosts: str | None,
    restarts: int | None,
    ranks: Sequence[Place],
    node: Node | None,
    host: str,
) -> Sequence[ServerPlace]:
    """Where the parameter servers are to be."""
    if ps is None and ps_hosts is None:
        if restarts is not None:
            raise LaunchError(
                "--restarts goes with --ps: ranks that reduce gradients among themselves cannot "
                "come back yet"
            )
        return ()
    named = parse_hosts(ps_hosts, "--ps-hosts") if ps_hosts is not None else ()
    named = host_list.gather_here(named, host)
    count = sum(each.slots for each in named) if ps is None else ps
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


def _server_files(
    servers: Sequence[ServerPlace],
    ps_dir: str | None,
    resume: bool,
    durability: str | None,
    checkpoint_dir: str | None,
    checkpoint_every: str | None,
    restore: str | None,
) -> ServerFiles:
    """What servers write and read; without a folder of state a lost server ends the job."""
    if durability is not None and ps_dir is None:
        raise LaunchError("--durability goes with --ps-dir, where servers keep what they hold")
    if resume and ps_dir is None:
        raise LaunchError("--resume goes with --ps-dir, where the job before has left its state")
    if checkpoint_every is not None and checkpoint_dir is None:
        raise LaunchError("--checkpoint-every goes with --checkpoint-dir, where checkpoints go")
    if checkpoint_every is not None and not re.fullmatch("[1-9][0-9]{0,8}s?", checkpoint_every):
        raise LaunchError(
            "--checkpoint-every must be a number of pushes, such as 1000, or of seconds, such as "
            f"60s, not {checkpoint_every!r}"
        )
    folders = {"--ps-dir": ps_dir, "--checkpoint-dir": checkpoint_dir, "--restore": restore}
    paths = {name: os.path.abspath(path) for name, path in folders.items() if path is not None}
    if paths and not servers:
        raise LaunchError(f"{next(iter(paths))} goes with --ps, the number of servers")
    return ServerFiles(
        state=paths.get("--ps-dir"),
        resume=resume,
        durability=durability or "log",
        checkpoints=paths.get("--checkpoint-dir"),
        checkpoint_every=checkpoint_every,
        restore=paths.get("--restore"),
    )


def _has_several_hosts(plan: LaunchPlan) -> bool:
    return len({each.place.host_index for each in plan.processes}) > 1


def _network(nic: str | None, port_range: str | None, tls: bool) -> dict[str, str]:
    """What the ranks of several hosts are told of the network between them."""
    if port_range is not None:
        meeting.parse_ports(port_range, "--port-range")
    told = {NIC: nic, PORT_RANGE: port_range, TLS: "1" if tls else None}
    return {name: text for name, text in told.items() if text is not None}


def _operations(cpu: str | None, gloo: bool, gpu: str | None, trusted: bool) -> dict[str, str]:
    """What the ranks are told of backends."""
    if gloo and cpu not in (None, "gloo"):
        raise LaunchError(f"--gloo and --cpu-operations {cpu} name two backends; give one of them")
    told = {
        CPU_OPERATIONS: "gloo" if gloo else cpu,
        GPU_OPERATIONS: gpu,
        TRUSTED_NETWORK: "1" if trusted else None,
    }
    return {name: text for name, text in told.items() if text is not None}


def named_hosts(hosts: str | None, hostfile: str | None) -> HostSource | None:
    """What -H or --hostfile names."""
    if hosts is not None and hostfile is not None:
        raise LaunchError("-H and --hostfile both name the hosts; give one of them")
    if hosts is not None:
        return HostSource(parse_hosts(hosts), "-H")
    if hostfile is None:
        return None
    name = "standard input" if hostfile == "-" else hostfile
    return HostSource(parse_hostfile(_read_text(hostfile, "--hostfile"), name), name)


def _user_environment(
    env_files: Sequence[str], assign: Sequence[str], options: Mapping[str, str]
) -> dict[str, str]:
    """What --env-file, -x and other options set; the later wins."""
    user: dict[str, str] = {}
    for name in env_files:
        user.update(environment.parse_env_file(_read_text(name, "--env-file"), name))
    values, missing = environment.parse_assignments(assign, os.environ)
    for name in missing:
        click.echo(f"ciranda: -x {name}: not set here, so not set for the ranks", err=True)
    return {**user, **values, **options}


def _read_text(name: str, option: str) -> str:
    """A file's text; `-` is stdin."""
    try:
        with open(0 if name == "-" else name, encoding="utf-8", closefd=name != "-") as file:
            return file.read()
    except OSError as error:
        raise LaunchError(f"{option} {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LaunchError(f"{option} {name}: not UTF-8 text") from error


def _columns(size: int) -> int | None:
    """Room for a progress bar beside the prefix, where the console is a terminal."""
    from ciranda.launch.run.console import terminal_width

    if not os.isatty(2):
        return None
    return max(20, terminal_width(2) - len(f"[{size - 1}] ") - 1)


def _terminal_has_colours() -> bool:
    return os.environ.get("TERM", "") not in ("", "dumb")


def _rerun(ctx: click.Context, command: Sequence[str]) -> str:
    """The command line again; values of -x may be secret and are left out."""
    if ctx.info_name == AS_FUNCTION:
        return ""
    words = ctx.command_path.split()
    for option in ctx.command.params:
        name = option.name or ""
        value = ctx.params.get(name)
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given or not isinstance(option, click.Option):
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words.append(option.opts[0])
            if not option.is_flag:
                text = str(each)
                if name == "assign" and "=" in text:
                    text = text.partition("=")[0] + "=..."
                words.append(text)
    return shlex.join([*words, *command])


def _print_cmake_prefix_path(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(cmake_prefix_path())
        context.exit()


class _Verbs(click.Group):
    """Verbs whose modules are imported when they are needed: `ciranda run` starts without them."""

    # Verb: module and command in it; the line of `ciranda --help`.
    LAZY: Mapping[str, tuple[str, str, str]] = {
        "bench": (
            "ciranda.bench.cli",
            "bench_command",
            "Measure collectives, beside those of others.",
        ),
        "compare": (
            "ciranda.compare.cli",
            "compare_command",
            "Train in many ways, and compare: five published studies.",
        ),
        "doctor": (
            "ciranda.doctor.cli",
            "doctor_command",
            "Say what is wrong on this machine, or between hosts.",
        ),
        "sweep": (
            "ciranda.sweep.cli",
            "sweep_command",
            "Search for parameters: many trainings, side by side.",
        ),
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.LAZY:
            return super().get_command(ctx, cmd_name)
        module, command, _ = self.LAZY[cmd_name]
        found: click.Command = getattr(importlib.import_module(module), command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = {name: text for name, (_, _, text) in self.LAZY.items()}
        for name, command in self.commands.items():
            lines[name] = command.get_short_help_str(formatter.width)
        with formatter.section("Commands"):
            formatter.write_dl(sorted(lines.items()))


@click.group(name="ciranda", cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--cmake-prefix-path",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_cmake_prefix_path,
    help="Print what CMake needs to build C++ programs, and exit.",
)
@click.version_option(package_name="ciranda", prog_name="ciranda", message="%(prog)s %(version)s")
def ciranda() -> None:
    """Data-parallel training for PyTorch."""


@click.command(name="key")
@click.argument("file")
@click.pass_context
def key_command(ctx: click.Context, file: str) -> None:
    """Write a new key into FILE, for `ciranda run --no-ssh --key-file FILE`.

    Copy it to every host, where only you may read it. Use it for one job.
    """
    try:
        meeting.make_key_file(file)
    except LaunchError as error:
        click.echo(f"{ctx.command_path}: {error}", err=True)
        ctx.exit(error.exit_code)


ciranda.add_command(run_command)
ciranda.add_command(key_command)


def main() -> None:
    """Entry point of `ciranda` and `python -m ciranda`."""
    ciranda.main(prog_name="ciranda")


def cirandarun() -> None:
    """Entry point of `cirandarun`."""
    run_command.main(prog_name="cirandarun")


def as_horovodrun() -> None:
    """Entry point of `horovodrun`: the ranks find ciranda under the name of horovod too."""
    run_command.main(prog_name="horovodrun")
