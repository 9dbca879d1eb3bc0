"""Draws results with matplotlib: bars of a table's figure, and accuracy against time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ciranda.compare.figures import ACCURATE, FIGURES
from ciranda.compare.study import Table
from ciranda.compare.table import Row, axis_heads

# The colour of a system, the same in all pictures of all studies: blue is ciranda, green are
# parameter servers.
_COLOURS = {
    "one": "#9aa5b1",
    "shm": "#2a6f97",
    "ring": "#56a3d9",
    "ring16": "#12436b",
    "gloo": "#7fb7be",
    "nccl": "#3d4fb8",
    "ps_sync": "#2e7d32",
    "ps_async": "#66bb6a",
    "downpour": "#9ccc65",
    "sandblaster": "#00695c",
    "coordinator": "#4db6ac",
    "ddp": "#e07a5f",
    "dataparallel": "#b5452c",
    "horovod": "#f2b134",
    "mpi": "#8e5ea2",
    "averaging": "#c9a0dc",
    "sweep": "#6d4c41",
}
_FREE = ("#d81b60", "#c0ca33", "#000000", "#ff9800", "#00bcd4", "#795548")  # systems of users
_LINES = ("-", "--", ":", "-.")  # of cells, where one system has several curves
_ROWS_MANY = 40  # a picture of more rows has small labels


def draw(filled: Sequence[tuple[Table, Sequence[Row]]]) -> dict[str, Any]:
    """Returns pictures by name: for each table bars of its figure, and accuracy against time.

    Returns no pictures without matplotlib.
    """
    try:
        import matplotlib
    except ImportError:
        return {}
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "ciranda"  # makes the same bytes from the same figures
    colours = _colours(row.setting.system for _, rows in filled for row in rows)
    pictures = {}
    for table, rows in filled:
        measured = [row for row in rows if table.plot in row.samples]
        if measured:
            pictures[table.name] = _bars(table, measured, colours)
        curved = [row for row in rows if row.curves]
        if table.curves and curved:
            pictures[f"{table.name}-curves"] = _curves(table, curved, colours)
    return pictures


def _colours(systems: Iterable[str]) -> dict[str, str]:
    """Returns the colour of each system; those of users take the free ones in turn."""
    own = [each for each in dict.fromkeys(systems) if each not in _COLOURS]
    return _COLOURS | {each: _FREE[at % len(_FREE)] for at, each in enumerate(own)}


def _bars(table: Table, rows: Sequence[Row], colours: dict[str, str]) -> Any:
    """Draws one bar for each row; with several rounds its error bar goes from least to most.

    Each value of the axis `table.panels` has a panel with a separate scale.
    """
    from matplotlib.figure import Figure

    panels: dict[Any, list[Row]] = {}
    for row in rows:
        panel = getattr(row.setting, table.panels) if table.panels else None
        panels.setdefault(panel, []).append(row)
    many = len(rows) > _ROWS_MANY
    height = 0.4 + sum(1.2 + (0.18 if many else 0.28) * len(each) for each in panels.values())
    figure = Figure(figsize=(9, height), layout="constrained")
    figure.suptitle(_bars_title(table, rows))
    ratios = [len(each) for each in panels.values()]
    places = figure.subplots(len(panels), squeeze=False, height_ratios=ratios)[:, 0]
    for axes, (panel, each) in zip(places, panels.items(), strict=True):
        for at, row in enumerate(each):
            samples = row.samples[table.plot]
            spread = [[samples.median - samples.low], [samples.high - samples.median]]
            error = spread if len(samples.values) > 1 else None
            colour = colours[row.setting.system]
            axes.barh(at, samples.median, xerr=error, capsize=3, color=colour)
        names = [_label(table, row) for row in each]
        axes.set(yticks=range(len(each)), yticklabels=names, xlabel=FIGURES[table.plot].title)
        if len(panels) > 1:
            axes.set_title(str(panel), fontsize="medium")
        axes.tick_params(axis="y", labelsize=7 if many else 10)
        axes.margins(y=0.01 if many else 0.05)
        axes.invert_yaxis()
        axes.grid(axis="x", alpha=0.3)
    return figure


def _bars_title(table: Table, rows: Sequence[Row]) -> str:
    rounds = max(len(row.samples[table.plot].values) for row in rows)
    if rounds == 1:
        return f"{table.title}\none round"
    return f"{table.title}\nmedian of {rounds} rounds, from the least to the most"


def _label(table: Table, row: Row) -> str:
    cell = [f"{head} {axis}" for head, axis in zip(axis_heads(table), row.axes, strict=True)]
    return ", ".join([*cell, row.title])


def _curves(table: Table, rows: Sequence[Row], colours: dict[str, str]) -> Any:
    """Draws the first round of each row: a colour for its system, a kind of line for its cell."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.8), layout="constrained")
    figure.suptitle(f"{table.title}\naccuracy in the first round")
    axes = figure.subplots()
    cells = list(dict.fromkeys(tuple(row.axes) for row in rows))
    for row in rows:
        times, accuracies = zip(*row.curves[0], strict=True)
        axes.plot(
            times,
            accuracies,
            linestyle=_LINES[cells.index(tuple(row.axes)) % len(_LINES)],
            marker="o",
            markersize=3,
            color=colours[row.setting.system],
            label=_label(table, row),
        )
    axes.axhline(ACCURATE, linewidth=0.8, color="grey")
    axes.set(xlabel="seconds of training", ylabel="accuracy, %")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    return figure
