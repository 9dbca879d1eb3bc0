"""The options of `ciranda run`: declarations in the groups of `--help`, and values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ciranda import _build
from ciranda.launch.errors import LaunchError
from ciranda.launch.horovod import horovodrun

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options as the user gave them, unchecked; None, False or () if not given."""

    np: int | None
    hosts: str | None
    hostfile: str | None
    python: str | None
    no_ssh: bool
    nodes: int | None
    node_rank: int | None
    rendezvous: str | None
    key_file: str | None
    nic: str | None
    port_range: str | None
    tls: bool
    trusted_network: bool
    cpu_operations: str | None
    gloo: bool
    gpu_operations: str | None
    ps: int | None
    ps_hosts: str | None
    ps_dir: str | None
    resume: bool
    durability: str | None
    checkpoint_dir: str | None
    checkpoint_every: str | None
    restore: str | None
    evaluator: bool
    coordinator: bool
    restarts: int | None
    min_np: int | None
    max_np: int | None
    spares: int | None
    reset_limit: int | None
    elastic_timeout: float | None
    lease: float | None
    blacklist_cooldown_range: tuple[float, float] | None
    host_discovery_script: str | None
    slots_per_host: int | None
    timeout: float | None
    assign: tuple[str, ...]
    env_file: tuple[str, ...]
    log_dir: str | None
    show_ranks: str | None
    no_color: bool
    dry_run: bool
    verbose: bool
    command: tuple[str, ...]


def split(given: Mapping[str, Any]) -> tuple[RunOptions, dict[str, Any]]:
    """Splits click's parameters into our options and those of horovodrun.settle()."""
    ours = {field.name for field in fields(RunOptions)}
    of_horovodrun = {name: value for name, value in given.items() if name not in ours}
    return RunOptions(**{name: given[name] for name in ours}), of_horovodrun


def complete_path(_: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Lets the shell complete a path: of a folder if the parameter's metavar is DIR."""
    return [CompletionItem(begun, type="dir" if parameter.metavar == "DIR" else "file")]


class _Option(click.Option):
    """An option that knows its group in `--help`."""

    def __init__(self, *args: Any, group: str, **settings: Any) -> None:
        if settings.get("metavar") in ("FILE", "DIR"):
            settings["shell_complete"] = complete_path
        super().__init__(*args, **settings)
        self.group = group


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


_Declaration = tuple[tuple[str, ...], dict[str, Any]]


def _declare(*names: str, **settings: Any) -> _Declaration:
    return names, settings


_GROUPS: dict[str, tuple[_Declaration, ...]] = {
    "Ranks and hosts": (
        _declare(
            "-np",
            "--np",
            "--num-proc",
            "np",
            type=int,
            metavar="N",
            help="Number of ranks [one for each core or slot].",
        ),
        _declare(
            "-H", "--hosts", metavar="HOST:N,...", help="Hosts, and how many ranks fit on each."
        ),
        _declare(
            "--hostfile",
            "-hostfile",
            metavar="FILE",
            help="The same from a file of lines `HOST slots=N`; - is stdin.",
        ),
        _declare(
            "--python", metavar="FILE", help="Path of Python on the other hosts [as on this host]."
        ),
        _declare(
            "--timeout", type=float, metavar="SECONDS", help="End the whole job after this time."
        ),
        _declare(
            "-x",
            "assign",
            multiple=True,
            metavar="VAR[=VALUE]",
            help="Set a variable for all ranks.",
        ),
        _declare(
            "--env-file",
            multiple=True,
            metavar="FILE",
            help="Set variables for all ranks, from lines KEY=VALUE.",
        ),
    ),
    "Output": (
        _declare("--log-dir", metavar="DIR", help="Keep a log file of each rank in DIR."),
        _declare(
            "--show-ranks", metavar="0,3-5", help="Show only these ranks on the console [all]."
        ),
        _declare("--no-color", is_flag=True, help="Use no colours; NO_COLOR=1 does the same."),
        _declare("--verbose", is_flag=True, help="Say what the launcher does."),
    ),
    "Instead of running": (
        _declare("--dry-run", is_flag=True, help="Print the command of each rank; start nothing."),
        _declare(
            "--check",
            "--check-build",
            "-cb",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_backends,
            help="Print which backends are available, and exit.",
        ),
    ),
    "Network between hosts": (
        _declare(
            "--nic",
            metavar="PATTERNS",
            help="Use these networks between hosts: eth0,10.0.0.0/8,!docker0.",
        ),
        _declare(
            "--port-range", metavar="A-B", help="Listen only on ports from A to B [on any port]."
        ),
        _declare("--tls", is_flag=True, help="Encrypt all traffic between hosts."),
        _declare(
            "--trusted-network",
            is_flag=True,
            help="Do not protect data between hosts; nobody else is on their network.",
        ),
    ),
    "A launcher on each host": (
        _declare(
            "--no-ssh",
            is_flag=True,
            help="Start only this host's ranks; each host has a launcher of its own.",
        ),
        _declare(
            "--nodes", type=int, metavar="N", help="With --no-ssh: number of hosts [told by srun]."
        ),
        _declare(
            "--node-rank",
            type=int,
            metavar="K",
            help="With --no-ssh: number of this host, from 0 [told by srun].",
        ),
        _declare(
            "--rendezvous",
            metavar="HOST:PORT",
            help="With --no-ssh: address on which host 0 listens [srun's first host].",
        ),
        _declare(
            "--key-file",
            metavar="FILE",
            help="With --no-ssh: the job's key, made by `ciranda key FILE`.",
        ),
    ),
    "Backends": (
        _declare(
            "--cpu-operations",
            type=click.Choice(["auto", "shm", "ring", *_build.CPU_BACKENDS]),
            help="Backend of operations on CPU tensors [auto: shm and ring].",
        ),
        _declare("--gloo", is_flag=True, help="The same as --cpu-operations gloo."),
        _declare(
            "--gpu-operations",
            type=click.Choice(["auto", *_build.GPU_BACKENDS]),
            help="Backend of operations on GPU tensors [auto: nccl].",
        ),
    ),
    "Elastic jobs": (
        _declare(
            "--min-np",
            "--min-num-proc",
            "min_np",
            type=int,
            metavar="N",
            help="Go on without lost ranks while N are left, and start lost ranks again [-np].",
        ),
        _declare(
            "--max-np",
            "--max-num-proc",
            "max_np",
            type=int,
            metavar="N",
            help="Let spares, and ranks of hosts that come, join until there are N ranks [-np].",
        ),
        _declare(
            "--spares",
            type=int,
            metavar="N",
            help="Start N more processes, which take the places of lost ranks at once [0].",
        ),
        _declare(
            "--reset-limit",
            type=int,
            metavar="N",
            help="Start at most N lost processes again [no limit; with --ps 10 for each rank].",
        ),
        _declare(
            "--elastic-timeout",
            type=float,
            metavar="SECONDS",
            help="End the job if too few ranks have waited this long for others [600].",
        ),
        _declare(
            "--lease",
            type=float,
            metavar="SECONDS",
            help="Replace a process that has stood still this long, stopped or frozen [2.5].",
        ),
        _declare(
            "--blacklist-cooldown-range",
            type=float,
            nargs=2,
            metavar="MIN MAX",
            help="Call a lost host again after MIN seconds, after more losses up to MAX [5 60].",
        ),
        _declare(
            "--host-discovery-script",
            metavar="FILE",
            help="Ask this program each second for the hosts to use; it prints HOST:SLOTS lines.",
        ),
        _declare(
            "--slots-per-host",
            type=int,
            metavar="N",
            help="Slots of hosts for which the program prints none.",
        ),
    ),
    "Parameter servers": (
        _declare(
            "--ps", type=int, metavar="N", help="Start N parameter servers besides the ranks."
        ),
        _declare(
            "--ps-hosts", metavar="H1,H2:2", help="Hosts of the servers [those of the ranks]."
        ),
        _declare(
            "--ps-dir",
            metavar="DIR",
            help="Folder in which each server keeps its state, on its own host.",
        ),
        _declare(
            "--resume",
            is_flag=True,
            help="With --ps-dir: continue from the state that an earlier job left there.",
        ),
        _declare(
            "--durability",
            type=click.Choice(["memory", "log", "disk"]),
            help="With --ps-dir: how much of the state outlives a killed server [log]; see "
            "docs/parameter-server.md.",
        ),
        _declare(
            "--checkpoint-dir",
            metavar="DIR",
            help="Folder for checkpoints of the servers; all servers need access to it.",
        ),
        _declare(
            "--checkpoint-every",
            metavar="N|Ns",
            help="Write a checkpoint every N pushes, or every N seconds (Ns) [1000].",
        ),
        _declare(
            "--restore",
            metavar="DIR",
            help="Start the servers from this checkpoint, or from the newest in DIR.",
        ),
        _declare(
            "--evaluator",
            is_flag=True,
            help="Run COMMAND in one more process, which scores checkpoints; see "
            "docs/parameter-server.md.",
        ),
        _declare(
            "--coordinator",
            is_flag=True,
            help="With --ps: run COMMAND in one more process, which gives tasks to the ranks.",
        ),
        _declare(
            "--restarts",
            type=int,
            metavar="N",
            help="With --ps: restart killed ranks, with --ps-dir also servers, N times in all [0].",
        ),
    ),
}
_OF_HOROVODRUN = "Options of horovodrun"
_GENERAL = "Help"


def declare(command: _Command) -> _Command:
    """Adds all options to a command: ours, then those of horovodrun."""
    command = horovodrun.options(command)
    for group, declarations in reversed(_GROUPS.items()):
        for names, settings in reversed(declarations):
            command = click.option(*names, cls=_Option, group=group, **settings)(command)
    return command


def write_help(
    parameters: list[click.Parameter], ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Writes the help of the options of declare(), group by group."""
    records: dict[str, list[tuple[str, str]]] = {
        title: [] for title in (*_GROUPS, _OF_HOROVODRUN, _GENERAL)
    }
    for parameter in parameters:
        record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
        if record is not None:
            general = {"--help", "--version"} & set(parameter.opts)
            group = getattr(parameter, "group", _GENERAL if general else _OF_HOROVODRUN)
            records[group].append(record)
    for title, lines in records.items():
        if lines:
            with formatter.section(title):
                formatter.write_dl(lines)
