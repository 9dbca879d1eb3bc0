"""The command `ciranda compare`. Imports no torch."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import click

from ciranda.compare import comparison, page, runs, study, system
from ciranda.compare.logged import log_run
from ciranda.compare.results import Results
from ciranda.compare.setting import Setting
from ciranda.launch.errors import EXIT_SIGNAL_BASE
from ciranda.launch.plan.environment import count_cores
from ciranda.measure.live_lines import LiveLines
from ciranda.measure.machine import machine as machine_facts
from ciranda.measure.signals import ending_signals
from ciranda.sinks import SINKS_HELP, Sinks

_SMALL_CORES = 8
_EPILOG = """\b
Examples:
  ciranda compare --list
  ciranda compare --study 003 --quick
  ciranda compare --study grid --models small-cnn --data ×1,×4 --ranks 1,2
  ciranda compare --study 003 --systems one,shm,./mine.py
"""


class _InterruptedError(click.ClickException):
    """A signal ended the command; says in one sentence what is kept."""

    def __init__(
        self, number: int, planned: Sequence[comparison.Planned], results: Results
    ) -> None:
        kept = sum(results.has(each.setting, each.number) for each in planned)
        super().__init__(
            f"interrupted; {kept} of {len(planned)} runs are kept in {results.folder}: the same "
            "command measures the others, and with --show it writes the tables of these"
        )
        self.exit_code = EXIT_SIGNAL_BASE + number  # type: ignore[misc] # ClassVar in click

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"ciranda compare: {self.message}", file=file, err=True)


def _listed(kind: Callable[[str], Any]) -> Callable[..., list[Any] | None]:
    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> list[Any] | None:
        if text is None:
            return None
        try:
            return [kind(each.strip()) for each in text.split(",")]
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a list like {param.metavar}") from None

    return read


def _times(text: str) -> int:
    return int(text.lstrip("×x"))


@click.command(
    name="compare", epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.option(
    "--study",
    "wanted",
    metavar="NAME",
    help="Number of a study (000 to 004), a word for it (see --list), or a file.",
)
@click.option("--list", "listed", is_flag=True, help="Print studies and systems, and exit.")
@click.option(
    "--quick",
    "mode",
    flag_value="quick",
    help="Run a part of the grid, in minutes [below 8 cores].",
)
@click.option("--full", "mode", flag_value="full", help="Run the whole grid of the study.")
@click.option("--tables", metavar="A,B", callback=_listed(str), help="Tables of the study [all].")
@click.option(
    "--models", metavar="A,B", callback=_listed(str), help="Models, instead of the study's."
)
@click.option(
    "--data",
    metavar="×1,×4",
    callback=_listed(_times),
    help="How many times the data set is repeated.",
)
@click.option(
    "--batch", metavar="64,128", callback=_listed(int), help="Images of a rank in each step."
)
@click.option("--ranks", metavar="1,2", callback=_listed(int), help="Numbers of ranks.")
@click.option(
    "--epoch", metavar="S", callback=_listed(float), help="Cut an epoch after S seconds; 0: never."
)
@click.option(
    "--systems",
    metavar="A,B",
    callback=_listed(str),
    help="Systems of `--list`, or files of yours.",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), metavar="N", help="How often each run is repeated."
)
@click.option(
    "--hosts", metavar="A,B", help="Two hosts to reach by ssh [network namespaces of this host]."
)
@click.option("--data-dir", metavar="DIR", help="Folder of the images.")
@click.option(
    "--out",
    metavar="DIR",
    default="ciranda-compare",
    help="Folder of the results [ciranda-compare].",
)
@click.option("--log", "logged", multiple=True, metavar="SINK", help=SINKS_HELP)
@click.option("--dry-run", is_flag=True, help="Print the runs; start nothing.")
@click.option("--show", is_flag=True, help="Write the tables of existing results; measure nothing.")
def compare_command(
    wanted: str | None,
    listed: bool,
    mode: str | None,
    tables: list[str] | None,
    models: list[str] | None,
    data: list[int] | None,
    batch: list[int] | None,
    ranks: list[int] | None,
    epoch: list[float] | None,
    systems: list[str] | None,
    rounds: int | None,
    hosts: str | None,
    data_dir: str | None,
    out: str,
    logged: tuple[str, ...],
    dry_run: bool,
    show: bool,
) -> None:
    """Compare ways to train: seconds, images/s, accuracy, and where the time goes.

    Each study repeats a published one, and adds the figures that it left out. The results in DIR
    are Markdown, a page with plots, CSV, JSON and PNG. Runs whose results exist are not repeated,
    so you may end the command at any time, and continue with the same command line.
    """
    if listed or wanted is None:
        _print_list()
        return
    mode = mode or ("quick" if count_cores() < _SMALL_CORES else "full")
    grid = {"model": models, "times": data, "batch": batch, "ranks": ranks, "epoch_s": epoch}
    request = study.Request(
        mode=mode,
        grid={name: values for name, values in grid.items() if values is not None},
        systems=systems or (),
        tables=tables or (),
        rounds=rounds,
    )
    try:
        found = study.load(study.find(wanted), request)
        names = dict.fromkeys(name for table in found.tables for name in table.systems)
        loaded = {name: system.load(name) for name in names}
        missing = _missing(loaded, hosts)
        planned = comparison.plan(found, loaded, missing)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    where = "-hosts" if hosts else ""
    results = Results(Path(out, f"study-{found.number}-{mode}{where}"))
    click.echo(f"Study {found.number}, {mode}: {len(planned)} runs; results in {results.folder}")
    for line in _left_out(found, loaded, missing):
        click.echo(f"  without {line}")
    if dry_run:
        for each in planned:
            click.echo(f"  round {each.number + 1}: {comparison.describe(each.setting)}")
        return
    try:
        facts = {"mode": mode, **results.on(machine_facts())}
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    live = LiveLines(sys.stdout, every_s=0.2)
    try:
        sinks = Sinks(logged, results.folder.name, live.say)
    except ValueError as error:
        raise click.ClickException(f"--log {error}") from None
    figures = list(dict.fromkeys(name for table in found.tables for name in table.figures))
    log = functools.partial(log_run, sinks, figures, results)
    if not show:
        _measure(planned, loaded, results, live, data_dir, hosts, log)
    try:
        for each in planned if show else ():
            log(each)
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        text = page.write(found, loaded, results, missing, facts, width)
    except KeyboardInterrupt:
        raise _InterruptedError(signal.SIGINT, planned, results) from None
    click.echo(f"\n{text}\nIn {results.folder}: study-{found.number}.html and others")
    if find_spec("matplotlib") is None:
        click.echo("No plots were drawn: pip install matplotlib, and the same command with --show")


def _measure(
    planned: Sequence[comparison.Planned],
    loaded: dict[str, system.System],
    results: Results,
    live: LiveLines,
    data_dir: str | None,
    hosts: str | None,
    after: Callable[[comparison.Planned], None],
) -> None:
    """Measures the planned runs; raises _InterruptedError if a signal arrives."""
    stop, received = threading.Event(), list[int]()

    def receive(number: int) -> None:
        received.append(number)
        stop.set()

    with ending_signals(receive), contextlib.suppress(runs.Interrupted):
        comparison.measure(planned, loaded, results, live, stop, data_dir, hosts, after)
    if received:
        raise _InterruptedError(received[0], planned, results)


def _missing(loaded: Mapping[str, system.System], hosts: str | None) -> comparison.Missing:
    reasons = {name: each.missing() for name, each in loaded.items()}
    no_hosts = None if hosts else runs.network_obstacle()

    def missing(setting: Setting) -> str | None:
        return reasons[setting.system] or (no_hosts if setting.network != "host" else None)

    return missing


def _left_out(
    found: study.Study, loaded: Mapping[str, system.System], missing: comparison.Missing
) -> list[str]:
    """Returns one line for each pair of a system and a reason why it cannot run here."""
    settings = [each for table in found.tables for each in table.settings(loaded)]
    lines = {f"{loaded[s.system].title}: {why}" for s in settings if (why := missing(s))}
    return sorted(lines)


def _print_list() -> None:
    click.echo("Studies (--study):")
    for number, path in study.paths().items():
        told = study.load(path, study.Request("quick"))
        click.echo(f"  {number}  {', '.join(told.words)}: {told.title}")
        click.echo(f"       tables: {', '.join(table.name for table in told.tables)}")
    click.echo("Systems (--systems):")
    for name in system.names():
        each = system.load(name)
        click.echo(f"  {name:14} {each.title}" + (f" [{why}]" if (why := each.missing()) else ""))
