"""Every option of horovodrun 0.28.1, and what ciranda does with it.

The table FLAGS declares the options that cli/run_options.py does not declare, and holds the answers
to refused options. docs/migrate-from-horovod.md lists the same options.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import click

from ciranda.compat import overridden
from ciranda.launch.errors import LaunchError
from ciranda.launch.horovod import knobs

HOROVOD_VERSION = "0.28.1"  # the version with this API

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Fate(enum.Enum):
    OURS = "ours"  # declared in cli/run_options.py
    WORKS = "works"
    NOTED = "noted"  # accepted, with one line that says what happens instead
    REFUSED = "refused"  # rejected with one sentence


class Flag(NamedTuple):
    names: tuple[str, ...]
    fate: Fate
    meaning: str  # here; for NOTED and REFUSED the text after the option's name
    value: click.ParamType[Any] | None = None  # None: a flag without a value
    variable: str = ""  # the variable that it sets for all ranks
    unit: int = 1  # factor from the option's value to the variable's
    multiple: bool = False

    @property
    def parameter(self) -> str:
        """The name under which click passes the option to the command."""
        return self.names[-1].lstrip("-").replace("-", "_")


# Arguments of horovod.run(), whose options of the command line work.
ELASTIC_CALL = "elastic jobs run a script so far; start it by horovodrun --min-np"
_CHOSEN = "gradients are always reduced inside each host first"
_IN_TURNS = "autotuning takes samples of each setting and of the best so far, in turns"
_NO_CYCLES = "there are no cycles, an operation starts at once"
_NO_MPI = "ciranda neither has nor needs MPI; leave the option out"
_MPIRUN = "start the ranks by mpirun itself, which then takes its own options"
_NO_LOG_TIME = "lines of ciranda have no timestamp; --prefix-output-with-timestamp adds one"
# horovodrun's --gloo chooses the controller, and not the backend that reduces.
_GLOO = "--gloo: ciranda's own ways need nothing; --cpu-operations gloo asks for Gloo itself"

_TEXT = click.STRING
_COUNT = click.IntRange(0, 1 << 20)
_SECONDS = click.IntRange(1, 86_400)


def _noted(names: str, line: str, value: click.ParamType[Any] | None = None) -> Flag:
    return Flag(tuple(names.split()), Fate.NOTED, line, value)


def _refused(names: str, sentence: str) -> Flag:
    return Flag(tuple(names.split()), Fate.REFUSED, sentence)


FLAGS = (
    Flag(("-np", "--num-proc"), Fate.OURS, "without it, one rank for each core or named slot"),
    Flag(("-v", "--version"), Fate.WORKS, "Print the version, and exit."),
    Flag(("-cb", "--check-build"), Fate.OURS, "prints which backends there are"),
    Flag(("--verbose",), Fate.OURS, "says what the launcher does"),
    Flag(("-H", "--hosts"), Fate.OURS, "hosts and slots"),
    Flag(("-hostfile", "--hostfile"), Fate.OURS, "the same from a file"),
    Flag(("--min-np", "--min-num-proc"), Fate.OURS, "the job goes on while so many ranks are left"),
    Flag(("--max-np", "--max-num-proc"), Fate.OURS, "spares join until there are so many ranks"),
    Flag(("--reset-limit",), Fate.OURS, "how many lost processes are started again"),
    Flag(
        ("--elastic-timeout",),
        Fate.OURS,
        "how long too few ranks wait for others; the default is 600 s",
    ),
    Flag(
        ("--blacklist-cooldown-range",),
        Fate.OURS,
        "how long a lost host is left alone before it is called again",
    ),
    Flag(("--host-discovery-script",), Fate.OURS, "is asked each second which hosts may be used"),
    Flag(("--slots-per-host",), Fate.OURS, "slots of hosts for which the script prints none"),
    Flag(
        ("--gloo",),
        Fate.OURS,
        "`horovodrun`: accepted with a line, no Gloo is needed; `ciranda run`: Gloo reduces "
        "tensors of the CPU",
    ),
    Flag(
        ("-p", "--ssh-port"),
        Fate.WORKS,
        "Port of ssh on the other hosts.",
        click.IntRange(1, 65_535),
    ),
    Flag(
        ("-i", "--ssh-identity-file"), Fate.WORKS, "Private key of ssh for the other hosts.", _TEXT
    ),
    Flag(
        ("--start-timeout",),
        Fate.WORKS,
        "Time that init() waits for all ranks [30].",
        _SECONDS,
        "CIRANDA_START_TIMEOUT_SECONDS",
    ),
    Flag(
        ("--network-interface", "--network-interfaces"),
        Fate.WORKS,
        "The same as --nic.",
        _TEXT,
        multiple=True,
    ),
    Flag(
        ("--output-filename",),
        Fate.WORKS,
        "Keep each rank's output in DIR/rank.N/stdout and stderr.",
        _TEXT,
    ),
    Flag(
        ("--config-file",),
        Fate.WORKS,
        "Read options from a YAML file in horovodrun's format.",
        _TEXT,
    ),
    Flag(
        ("--fusion-threshold-mb",),
        Fate.WORKS,
        "Largest size of a fused operation, in MiB [64].",
        _COUNT,
        "CIRANDA_FUSION_THRESHOLD",
        1 << 20,
    ),
    Flag(
        ("--cache-capacity",),
        Fate.WORKS,
        "Number of known operations, which need only a short frame [4096].",
        _COUNT,
        "CIRANDA_CACHE_CAPACITY",
    ),
    Flag(
        ("--timeline", "--timeline-filename"),
        Fate.WORKS,
        "Write a Chrome trace of all ranks.",
        _TEXT,
        "CIRANDA_TIMELINE",
    ),
    Flag(
        ("--timeline-mark-cycles",),
        Fate.WORKS,
        "Mark in the timeline where operations begin.",
        variable="CIRANDA_TIMELINE_MARK_CYCLES",
    ),
    Flag(
        ("--autotune",),
        Fate.WORKS,
        "Try settings during the training, and keep the fastest.",
        variable="CIRANDA_AUTOTUNE",
    ),
    Flag(
        ("--autotune-log-file",),
        Fate.WORKS,
        "Write a line for each setting that autotuning tries.",
        _TEXT,
        "CIRANDA_AUTOTUNE_LOG",
    ),
    Flag(
        ("--autotune-warmup-samples",),
        Fate.WORKS,
        "Samples that autotuning discards first [3].",
        _COUNT,
        "CIRANDA_AUTOTUNE_WARMUP_SAMPLES",
    ),
    Flag(
        ("--autotune-steps-per-sample",),
        Fate.WORKS,
        "Steps that autotuning times as one sample [10].",
        click.IntRange(1, 1_000_000),
        "CIRANDA_AUTOTUNE_STEPS_PER_SAMPLE",
    ),
    Flag(("--no-stall-check",), Fate.WORKS, "Do not warn of stalls."),
    Flag(
        ("--stall-check-warning-time-seconds",),
        Fate.WORKS,
        "Warn of a stall after this time; 0: never [60].",
        _COUNT,
        "CIRANDA_STALL_WARNING_SECONDS",
    ),
    Flag(
        ("--stall-check-shutdown-time-seconds",),
        Fate.WORKS,
        "End the job after a stall of this time; 0: never [0].",
        _COUNT,
        "CIRANDA_STALL_SHUTDOWN_SECONDS",
    ),
    Flag(
        ("--gloo-timeout-seconds",),
        Fate.WORKS,
        "The same as --start-timeout, which wins if both are given.",
        _SECONDS,
        "CIRANDA_START_TIMEOUT_SECONDS",
    ),
    Flag(
        ("--log-level",),
        Fate.WORKS,
        "TRACE, DEBUG and INFO mean --verbose; warnings are always shown.",
        click.Choice(("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")),
    ),
    Flag(
        ("-prefix-timestamp", "--prefix-output-with-timestamp"),
        Fate.WORKS,
        "Print the time before each line on the console.",
    ),
    _noted("--disable-cache", "no finding about hosts is kept between two starts"),
    _noted("--cycle-time-ms", _NO_CYCLES, click.FLOAT),
    _noted("--hierarchical-allreduce", _CHOSEN),
    _noted("--no-hierarchical-allreduce", _CHOSEN),
    _noted("--hierarchical-allgather", _CHOSEN),
    _noted("--no-hierarchical-allgather", _CHOSEN),
    _noted("--torus-allreduce", _CHOSEN),
    _noted("--no-torus-allreduce", _CHOSEN),
    _noted("--no-autotune", "nothing is tuned without --autotune"),
    _noted("--autotune-bayes-opt-max-samples", _IN_TURNS, click.INT),
    _noted("--autotune-gaussian-process-noise", _IN_TURNS, click.FLOAT),
    _noted("--no-timeline-mark-cycles", "no cycles are marked without --timeline-mark-cycles"),
    _noted("--stall-check", "stalls are looked for unless a variable says otherwise"),
    _noted("--mpi-threads-disable", "ciranda does not use MPI"),
    _noted("--no-mpi-threads-disable", "ciranda does not use MPI"),
    _noted("--tcp", "hosts always talk through TCP"),
    _noted("--num-nccl-streams", "each GPU has one stream of ciranda's", click.INT),
    _noted("--log-with-timestamp", _NO_LOG_TIME),
    _noted("--log-without-timestamp", _NO_LOG_TIME),
    _noted("--log-hide-timestamp", _NO_LOG_TIME),
    _noted("--no-log-hide-timestamp", _NO_LOG_TIME),
    _refused("--mpi", _NO_MPI),
    _refused("--jsrun", _NO_MPI),
    _refused("--mpi-args", _MPIRUN),
    _refused("--binding-args", _MPIRUN),
    _refused("--thread-affinity", "start the ranks through taskset or numactl"),
)
ANSWERS = {name: flag.meaning for flag in FLAGS if flag.fate is Fate.REFUSED for name in flag.names}
"""Maps a refused option to the rest of a sentence that begins with the option's name."""


def options(command: _Command) -> _Command:
    """Adds horovodrun's options that cli/run_options.py lacks; settle() reads their values."""
    for flag in reversed(FLAGS):
        if flag.fate in (Fate.WORKS, Fate.NOTED):
            command = _option(flag)(command)
    return command


def _option(flag: Flag) -> Callable[[_Command], _Command]:
    special: dict[str, Any] = {}
    if flag.parameter == "version":
        special = {"is_eager": True, "expose_value": False, "callback": _print_version}
    if flag.parameter == "config_file":
        special = {"is_eager": True, "callback": _read_config_file}
    if flag.value is None:
        special |= {"is_flag": True}
    return click.option(
        *flag.names,
        flag.parameter,
        type=flag.value,
        multiple=flag.multiple,
        metavar="SECONDS" if flag.value is _SECONDS else None,
        hidden=flag.fate is Fate.NOTED,
        help=flag.meaning,
        **special,
    )


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    import ciranda

    if wanted:
        ours = f"ciranda {ciranda.__version__}"
        click.echo(f"{HOROVOD_VERSION} ({ours})" if is_horovodrun(context) else ours)
        context.exit()


def _read_config_file(context: click.Context, _: click.Parameter, name: str | None) -> str | None:
    """Makes the values of the file the defaults of the options."""
    if name is not None:
        try:
            there = {flag.parameter: flag for flag in FLAGS if flag.fate is not Fate.REFUSED}
            context.default_map, notes = knobs.read(name, there, ANSWERS)
        except LaunchError as error:
            raise click.UsageError(f"--config-file {error}", context) from None
        for note in notes:
            click.echo(f"{context.command_path}: {note}", err=True)
    return name


def is_horovodrun(context: click.Context) -> bool:
    return context.info_name == "horovodrun"


@dataclass(frozen=True)
class Settled:
    """The settings that follow from the options of horovodrun."""

    variables: Mapping[str, str]  # for all ranks
    ssh_options: tuple[str, ...]
    nic: str | None
    output_dir: str | None
    timestamps: bool
    verbose: bool
    notes: tuple[str, ...]
    gloo: bool  # true: Gloo reduces CPU tensors
    horovod_names: bool  # true: ranks can import ciranda as horovod too


def settle(context: click.Context, given: Mapping[str, Any], gloo: bool) -> Settled:
    """Turns options into settings; raises LaunchError for an identity file that is missing.

    `given` holds the options' values by parameter; `gloo` is true if --gloo is given.
    """
    notes = [
        f"{flag.names[-1]}: {flag.meaning}"
        for flag in FLAGS
        if flag.fate is Fate.NOTED and given[flag.parameter] not in (None, False)
    ]
    in_its_place = is_horovodrun(context)
    if in_its_place:
        notes += [line for line in (overridden(),) if line]
        if gloo:
            notes.append(_GLOO)
    variables: dict[str, str] = {}
    for flag in reversed(FLAGS):  # reversed: --start-timeout overrides --gloo-timeout-seconds
        value = given.get(flag.parameter)
        if not flag.variable or value is None or value is False:
            continue
        variables[flag.variable] = str(value * flag.unit if flag.unit > 1 else value)
        if flag.value is None:
            variables[flag.variable] = "1"
    if given["no_stall_check"]:
        variables["CIRANDA_STALL_WARNING_SECONDS"] = "0"
    ssh_options: list[str] = []
    if given["ssh_port"] is not None:
        ssh_options += ["-p", str(given["ssh_port"])]
    identity = given["ssh_identity_file"]
    if identity is not None:
        if not os.path.isfile(identity):
            raise LaunchError(f"--ssh-identity-file {identity}: there is no such file")
        ssh_options += ["-i", identity]
    return Settled(
        variables,
        tuple(ssh_options),
        nic=",".join(given["network_interfaces"]) or None,
        output_dir=given["output_filename"],
        timestamps=given["prefix_output_with_timestamp"],
        verbose=given["log_level"] in ("TRACE", "DEBUG", "INFO"),
        notes=tuple(notes),
        gloo=gloo and not in_its_place,
        horovod_names=in_its_place,
    )
