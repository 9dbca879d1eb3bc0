"""One run from its settings to its exit code: measures, prints, writes, compares."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from ciranda.bench import comparison, measuring, picture, sides_here, tables
from ciranda.bench.record import Record, read_json, write_csv, write_json
from ciranda.bench.settings import Settings, check_files, check_memory
from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.environment import count_cores
from ciranda.measure.machine import machine as measured_machine
from ciranda.measure.machine import version_of
from ciranda.measure.sides import SideError

EXIT_WRONG = 1  # a side failed, a result was wrong, or a backend became too slow


def run(settings: Settings, command: Sequence[str]) -> int:
    """Runs the bench and returns its exit code; `command` is the typed command, for the record."""
    check_files(settings)
    if settings.png is not None:
        picture.check_matplotlib()
    base = _base(settings)
    if settings.device == "cuda":
        sides_here.check_gpus(settings.ranks)
    machine = {**measured_machine(), "cores": count_cores(), "mpi4py": version_of("mpi4py")}
    for line in tables.machine_lines(machine, settings.ranks, settings.device, settings.hosts):
        click.echo(tables.note(line))
    two = sides_here.two_hosts() if settings.hosts > 1 else contextlib.nullcontext()
    with two as among:
        new = _measure(settings, command, machine, among)
    _write(settings, new)
    failures = [
        f"{comparison.name(row.key)}: {row.wrong} elements are wrong"
        for row in new.rows
        if row.wrong
    ]
    if base is not None:
        failures += _compare(settings, base, new)
    for sentence in failures:
        click.echo(f"ciranda bench: {sentence}", err=True)
    return EXIT_WRONG if failures else 0


def _base(settings: Settings) -> Record | None:
    if settings.compare is None:
        return None
    base = read_json(settings.compare, "--compare")
    comparison.check_comparable(
        base, settings.compare, settings.ranks, settings.device, settings.hosts
    )
    return base


def _measure(
    settings: Settings,
    command: Sequence[str],
    machine: Mapping[str, Any],
    among: sides_here.Hosts | None,
) -> Record:
    here, absent = sides_here.find(
        settings.backends, settings.peers, settings.ranks, settings.device, among
    )
    check_memory(settings, [each.ranks for each in here], machine["memory_gib"])
    progress = _Progress()
    try:
        with sides_here.running(here, settings.peers or ()) as (started, not_started):
            absent += not_started
            for each in absent:
                click.echo(tables.note(f"Not here: {each.name} {each.why}"))
            measured = measuring.measure(
                started, settings.cases, settings.ranks, settings.rounds, progress
            )
    except SideError as error:
        raise LaunchError(str(error), EXIT_WRONG) from error
    finally:
        progress.end()
    for why, which in measured.refused.items():
        click.echo(tables.note(f"Not measured: {why}: {', '.join(which)}"))
    if not measured.rows:
        raise LaunchError("nothing was measured: no side supports the given operations", EXIT_WRONG)
    click.echo(f"\n{tables.report(measured.rows, {each.name: each.title for each in here})}")
    return Record(
        command=command,
        machine=machine,
        ranks=settings.ranks,
        device=settings.device,
        hosts=settings.hosts,
        rows=measured.rows,
        absent={each.name: each.why for each in absent},
        refused=measured.refused,
    )


def _write(settings: Settings, new: Record) -> None:
    if settings.json is not None:
        write_json(settings.json, new)
    if settings.csv is not None:
        write_csv(settings.csv, new.rows)
    if settings.png is not None:
        picture.draw(settings.png, new.rows, f"{settings.ranks} ranks, {new.machine['cpu']}")


def _compare(settings: Settings, base: Record, new: Record) -> list[str]:
    """Prints the ratios; returns a sentence for each row that fails."""
    found = comparison.compare(base.rows, new.rows)
    limit = settings.fail_below
    click.echo(f"\n{comparison.report(base, new, found, str(settings.compare), limit)}")
    return (
        [] if limit is None else [comparison.failure(pair, limit) for pair in found.failed(limit)]
    )


class _Progress:
    """A line on a terminal that each new text replaces; prints nothing if stderr is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        if self._shown:
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    def end(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)
