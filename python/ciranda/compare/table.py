"""A study's tables, from its results: rows for Markdown and HTML, and CSV. Pure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
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
    "lr": "learning rate",
    "saver": "checkpoints",
    "prune": "ended early by",
    "parallel": "trials side by side",
}


@dataclass
class Row:
    setting: Setting
    title: str  # of the system
    axes: list[str]
    samples: dict[str, Samples]  # by figure, over the rounds
    notes: list[str]
    failed: str = ""  # why there is no figure
    curves: list[list[tuple[float, float]]] = field(default_factory=list)


def rows_of(
    table: Table,
    systems: Mapping[str, System],
    results: Results,
    missing: Callable[[Setting], str | None],
) -> list[Row]:
    """`missing`: why a setting cannot run here. Rows that are not measured yet are left out."""
    rows = []
    for setting in table.settings(systems):
        system = systems[setting.system]
        axes = [_axis(name, getattr(setting, name)) for name in table.axes()]
        row = Row(setting, system.title, axes, {}, [])
        if why := missing(setting):
            row.failed = why
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
    """Of many lines the one that says it: the first exception's, or the last line."""
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


def heads(table: Table) -> list[str]:
    axes = [_AXIS_TITLES.get(name, name) for name in table.axes()]
    return [*axes, "system", *(FIGURES[name].title for name in table.figures)]


def cells(table: Table, row: Row, notes: list[str]) -> list[str]:
    """Texts of a row; a note is given its number in `notes`, which grows."""
    marks = []
    for note in row.notes:
        if note not in notes:
            notes.append(note)
        marks.append(str(notes.index(note) + 1))
    title = row.title + (f" [{', '.join(marks)}]" if marks else "")
    if row.failed:
        figures = [row.failed, *[""] * (len(table.figures) - 1)]
    else:
        figures = [show_figure(name, row.samples.get(name)) for name in table.figures]
    return [*row.axes, title, *figures]


def show_figure(name: str, samples: Samples | None) -> str:
    """Median and spread, where there are several."""
    if samples is None:
        return ABSENT.get(name, "–")
    digits = FIGURES[name].digits
    if len(samples.values) == 1:
        return f"{samples.median:,.{digits}f}"
    return samples.show(digits)


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    texts = [[cell.replace("|", "\\|") for cell in line] for line in [head, *lines]]
    texts.insert(1, ["---"] * len(head))
    return "\n".join("| " + " | ".join(line) + " |" for line in texts)


def table_markdown(table: Table, rows: Sequence[Row]) -> str:
    """The table, and its notes."""
    notes: list[str] = []
    lines = [cells(table, row, notes) for row in rows]
    if not lines:
        return "Not measured yet."
    parts = [markdown(heads(table), lines)]
    parts += ["\n".join(f"[{n}] {note}.  " for n, note in enumerate(notes, 1))] if notes else []
    return "\n\n".join(parts)


def csv_text(tables: Sequence[tuple[Table, Sequence[Row]]]) -> str:
    """A line for each figure of each round: long, as programs like it."""
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
