"""The command `ciranda sweep`: options in, one sweep out. Imports neither torch nor Optuna."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import click

from ciranda.launch.cli.run_options import complete_path
from ciranda.launch.errors import EXIT_SIGNAL_BASE, LaunchError
from ciranda.sinks import SINKS_HELP
from ciranda.sweep.settings import INTERRUPTED, PRUNERS, SAMPLERS, SweepResult, SweepSettings
from ciranda.sweep.space import parse_space

_EXAMPLES = """\b
Examples:
  ciranda sweep --trials 12 --param lr=1e-4..1e-1:log --maximize accuracy \\
      --metric-regex 'accuracy (\\d+\\.\\d+)' -- train.py --lr {lr}
  ciranda sweep --sampler grid --param lr=0.1,0.01 --param batch=32,64 \\
      --minimize loss -np 2 --parallel 2 -- train.py --lr {lr} --batch {batch}
"""


@click.command(
    name="sweep",
    epilog=_EXAMPLES,
    context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]},
)
@click.option(
    "--param",
    "parameters",
    multiple=True,
    metavar="NAME=VALUES",
    help="A parameter and its values: lr=1e-4..1e-1:log or batch=32,64.",
)
@click.option(
    "--maximize", metavar="METRIC", help="The metric that trials report, if more is better."
)
@click.option(
    "--minimize", metavar="METRIC", help="The metric that trials report, if less is better."
)
@click.option("--trials", type=int, metavar="N", help="Number of trials [the whole grid].")
@click.option(
    "-np",
    "--np",
    "--num-proc",
    "np",
    type=int,
    default=1,
    metavar="N",
    help="Ranks of each trial [1].",
)
@click.option(
    "--parallel", type=int, metavar="N", help="Trials that run at the same time [cores / ranks]."
)
@click.option(
    "--sampler", type=click.Choice(SAMPLERS), default="tpe", help="How values are chosen [tpe]."
)
@click.option("--seed", type=int, help="Seed of the sampler [a new one each time].")
@click.option(
    "--prune", type=click.Choice(PRUNERS), default="none", help="End bad trials early [none]."
)
@click.option(
    "--prune-after", type=int, default=0, metavar="STEPS", help="End no trial before this step [0]."
)
@click.option(
    "--metric-regex",
    metavar="REGEX",
    help="Find the metric in rank 0's output [trials call ciranda.sweep.report].",
)
@click.option(
    "--out", default="sweep-results", metavar="DIR", help="Folder of the results [sweep-results]."
)
@click.option(
    "--storage",
    metavar="FILE",
    help="File from which an interrupted sweep continues [sweep.log in --out].",
)
@click.option("--log", "logged", multiple=True, metavar="SINK", help=SINKS_HELP)
@click.option(
    "--run", "run_options", default="", metavar="OPTIONS", help="More options for `ciranda run`."
)
@click.option("-H", "--hosts", "--hostfile", hidden=True)
@click.argument(
    "command",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="COMMAND [ARGS]...",
    shell_complete=complete_path,
)
@click.pass_context
def sweep_command(
    ctx: click.Context,
    /,
    parameters: tuple[str, ...],
    maximize: str | None,
    minimize: str | None,
    trials: int | None,
    np: int,
    parallel: int | None,
    sampler: str,
    seed: int | None,
    prune: str,
    prune_after: int,
    metric_regex: str | None,
    out: str,
    storage: str | None,
    logged: tuple[str, ...],
    run_options: str,
    hosts: str | None,
    command: tuple[str, ...],
) -> None:
    """Search for the best parameters of COMMAND: run it many times, some runs in parallel.

    Each run is a job of N ranks on this host. {lr} in COMMAND becomes a value of --param lr=...,
    and {trial} becomes the trial's number. To continue an interrupted sweep, repeat its command
    line.
    """
    from ciranda.sweep.display import Display
    from ciranda.sweep.sweep import run_sweep
    from ciranda.sweep.table import summary

    try:
        if hosts is not None:
            raise LaunchError("-H: the trials of a sweep run on this host; leave it out")
        metric, is_maximum = _goal(maximize, minimize)
        settings = SweepSettings(
            command=command,
            space=parse_space(parameters),
            metric=metric,
            maximize=is_maximum,
            trials=trials,
            np=np,
            parallel=parallel,
            sampler=sampler,
            seed=seed,
            prune=prune,
            prune_after=prune_after,
            metric_regex=metric_regex,
            out=Path(out),
            storage=None if storage is None else Path(storage),
            run_options=_words(run_options),
            log=logged,
        )
        display = Display(sys.stdout, metric)
        try:
            result = run_sweep(settings, display)
        finally:
            display.close()
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for line in summary(settings, result, width):
            click.echo(line)
        if result.signal is not None:
            click.echo(f"{ctx.command_path}: {_interrupted(settings, result)}", err=True)
            code = EXIT_SIGNAL_BASE + result.signal
        elif result.best is None:
            raise LaunchError(_no_best(settings, len(result.trials)), exit_code=1)
        else:
            code = 0
    except LaunchError as error:
        for line in str(error).splitlines():
            click.echo(f"{ctx.command_path}: {line}", err=True)
        code = error.exit_code
    ctx.exit(code)


def _goal(maximize: str | None, minimize: str | None) -> tuple[str, bool]:
    if maximize is not None and minimize is not None:
        raise LaunchError("--maximize and --minimize both name the metric; give one of them")
    metric = minimize if maximize is None else maximize
    if not metric:
        raise LaunchError("say what is searched for: --maximize METRIC or --minimize METRIC")
    return metric, maximize is not None


def _words(run_options: str) -> list[str]:
    try:
        return shlex.split(run_options)
    except ValueError as error:
        raise LaunchError(f"--run {run_options!r}: {error}") from None


def _interrupted(settings: SweepSettings, result: SweepResult) -> str:
    ended = len(result.trials) - result.count(INTERRUPTED)
    return (
        f"interrupted; {ended} of {settings.planned()} trials have ended and are kept in "
        f"{settings.out}: the same command runs the others"
    )


def _no_best(settings: SweepSettings, count: int) -> str:
    return (
        f"of {count} trials none is complete; {settings.out}/trial-N/output.log is what each of "
        "them has said"
    )
