"""Makes a study's tables from its results, for Markdown, HTML and CSV. Pure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ciranda.compare import machine
from ciranda.compare.figures import ABSENT, FIGURES
from ciranda.compare.results import Results
from ciranda.compare.setting import Setting
from ciranda.compare.study import Table
from ciranda.compare.system import System
from ciranda.measure.samples import Samples

_EXCEPTION = re.compile(r"\b[\w.]*(Error|Exception)\b: .*")
_AXIS_TITLES = {
    "times": "data",
    "killed": "killed once",
    "slowness": "one rank slower",
    "image_px": "pixels",
    "epoch_s": "epochs cut after, s",
    "lr": "learning rate",
    "saver": "checkpoints",
    "prune": "ended early by",
    "parallel": "trials side by side",
}


# A table of more cells than this begins with an overview of its plotted figure, one column for each
# system.
_CELLS_MAX = 6


@dataclass(frozen=True)
class Grid:
    head: Sequence[str]
    lines: Sequence[Sequence[str]]  # a short line ends with a reason in place of its figures
    words: int  # columns before those of figures


@dataclass
class Row:
    setting: Setting
    title: str  # of the system
    axes: list[str]
    samples: dict[str, Samples]  # by figure, one sample for each round
    notes: list[str]
    missing: str = ""  # why the setting cannot run here
    failed: str = ""  # why there is no figure
    curves: list[list[tuple[float, float]]] = field(default_factory=list)


def rows_of(
    table: Table,
    systems: Mapping[str, System],
    results: Results,
    missing: Callable[[Setting], str | None],
) -> list[Row]:
    """Returns a table's rows, without those that are not measured yet.

    `missing` returns why a setting cannot run here.
    """
    rows = []
    for setting in table.settings(systems):
        system = systems[setting.system]
        axes = [_axis(name, getattr(setting, name)) for name in table.axes()]
        row = Row(setting, system.title, axes, {}, [])
        if why := missing(setting):
            row.missing = row.failed = why
            rows.append(row)
            continue
        runs = results.of(setting)
        whole = [run for run in runs if "error" not in run]
        if not runs:
            continue
        if not whole:
            row.failed = f"failed: {_reason(runs[-1]['error'])}"
        _fill(row, table, whole, results)
        rows.append(row)
    return rows


def _reason(error: str) -> str:
    """Returns the line of an error that explains it: the first exception, or the last line."""
    lines = [line for line in error.splitlines() if line.strip()] or ["nothing was said"]
    found = next((match[0] for line in lines if (match := _EXCEPTION.search(line))), lines[-1])
    return found.strip()


def _fill(row: Row, table: Table, runs: Sequence[dict[str, Any]], results: Results) -> None:
    for run in runs:

        def other(setting: Setting, number: int = run["round"]) -> dict[str, Any] | None:
            found = results.at(setting, number)
            return found if found and "error" not in found else None

        for name in table.figures:
            value = FIGURES[name].of(run, row.setting, other)
            if value is not None:
                row.samples.setdefault(name, Samples()).add(float(value))
        notes = machine.nonsense(row.setting, run)
        notes += run["ranks"][0].get("notes", [])
        row.notes += [note for note in notes if note not in row.notes]
        if curve := run["ranks"][0].get("curve"):
            row.curves.append([(at, accuracy) for at, accuracy in curve])


def _axis(name: str, value: Any) -> str:
    if name == "times":
        return f"×{value}"
    if name == "slowness":
        return "no" if value == 1.0 else f"{value:g} times"
    return f"{value:g}" if isinstance(value, float) else str(value) or "no"


def contents(table: Table, rows: Sequence[Row]) -> list[str | Grid]:
    """Returns paragraphs and grids; a note or a system that cannot run here appears once."""
    absent = _absent(rows)
    rows = [row for row in rows if row.title not in absent]
    notes: list[str] = []
    lines = [_cells(table, row, notes) for row in rows]
    parts: list[str | Grid] = []
    if lines:
        parts += _overview(table, rows)
        parts.append(Grid(heads(table), lines, len(table.axes()) + 1))
    else:
        parts.append("Not measured yet.")
    parts += [f"[{number}] {note}." for number, note in enumerate(notes, 1)]
    parts += [f"Without {title}: {why}." for title, why in absent.items()]
    return parts


def _absent(rows: Sequence[Row]) -> dict[str, str]:
    """Returns, by title, the systems without a row that can run here, and why."""
    there = {row.title for row in rows if not row.missing}
    return {row.title: row.missing for row in rows if row.title not in there}


def _overview(table: Table, rows: Sequence[Row]) -> list[str | Grid]:
    """Returns a grid with a row for each cell of a large table and a column for each system."""
    if not table.plot or len({tuple(row.axes) for row in rows}) <= _CELLS_MAX:
        return []

    def told(row: Row) -> str:
        return "failed" if row.failed else show_figure(table.plot, row.samples.get(table.plot))

    titles, lines = beside_each_other((tuple(row.axes), row.title, told(row)) for row in rows)
    heading = f"{FIGURES[table.plot].title}:"
    return [heading, Grid([*axis_heads(table), *titles], lines, len(table.axes())), "All figures:"]


def beside_each_other(
    told: Iterable[tuple[tuple[str, ...], str, str]],
) -> tuple[list[str], list[list[str]]]:
    """Returns the systems, and one line for each cell: its axes, then each system's text.

    `told` has (axes of a cell, system, text). A missing text is empty.
    """
    titles: dict[str, None] = {}
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for axes, title, text in told:
        titles[title] = None
        cells.setdefault(axes, {})[title] = text
    lines = [[*axes, *(texts.get(each, "") for each in titles)] for axes, texts in cells.items()]
    return list(titles), lines


def axis_heads(table: Table) -> list[str]:
    return [_AXIS_TITLES.get(name, name) for name in table.axes()]


def heads(table: Table) -> list[str]:
    return [*axis_heads(table), "system", *(FIGURES[name].title for name in table.figures)]


def _cells(table: Table, row: Row, notes: list[str]) -> list[str]:
    """Returns a row's texts, marked with numbers of notes; appends new notes to `notes`."""
    marks = []
    for note in row.notes:
        if note not in notes:
            notes.append(note)
        marks.append(str(notes.index(note) + 1))
    title = row.title + (f" [{', '.join(marks)}]" if marks else "")
    figures = [show_figure(name, row.samples.get(name)) for name in table.figures]
    return [*row.axes, title, *([row.failed] if row.failed else figures)]


def show_figure(name: str, samples: Samples | None) -> str:
    """Returns the median, with the spread if there are several values."""
    if samples is None:
        return ABSENT.get(name, "–")
    digits = FIGURES[name].digits
    if len(samples.values) == 1:
        return f"{samples.median:,.{digits}f}"
    return samples.show(digits)


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    texts = [[cell.replace("|", "\\|") for cell in line] for line in [head, *lines]]
    texts = [[*line, *[""] * (len(head) - len(line))] for line in texts]
    texts.insert(1, ["---"] * len(head))
    return "\n".join("| " + " | ".join(line) + " |" for line in texts)


def table_markdown(table: Table, rows: Sequence[Row]) -> str:
    parts = contents(table, rows)
    shown = [part if isinstance(part, str) else markdown(part.head, part.lines) for part in parts]
    return "\n\n".join(shown)


def csv_text(tables: Sequence[tuple[Table, Sequence[Row]]]) -> str:
    """Returns CSV in long form: one line for each figure of each round."""
    out = io.StringIO()
    names = sorted({name for table, _ in tables for name in [*table.axes(), *table.setting]})
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "system", *names, "figure", "round", "value"])
    for table, rows in tables:
        for row in rows:
            axes = [getattr(row.setting, name) for name in names]
            for name, samples in row.samples.items():
                for number, value in enumerate(samples.values):
                    writer.writerow([table.name, row.setting.system, *axes, name, number, value])
    return out.getvalue()
