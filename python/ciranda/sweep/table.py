"""Formats trials as text: tables, lines, results.csv, the command line of a trial. Pure."""

from __future__ import annotations

import csv
import io
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence

from ciranda.measure.fitted import fitted
from ciranda.sweep.settings import (
    COMPLETE,
    FAILED,
    INTERRUPTED,
    PRUNED,
    SweepResult,
    SweepSettings,
    TrialResult,
    best_first,
)
from ciranda.sweep.space import RESULT_COLUMNS, Space, Value, fill_in, texts_of

BEST_SHOWN = 5


def parameters_text(parameters: Mapping[str, Value]) -> str:
    """Formats parameters: `lr=0.01 batch=64`."""
    return " ".join(f"{name}={text}" for name, text in texts_of(parameters).items())


def value_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def seconds_text(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"


def states_text(trials: Sequence[TrialResult]) -> str:
    """Counts states: `9 complete, 2 pruned`."""
    counts = Counter(each.state for each in trials)
    order = (COMPLETE, PRUNED, FAILED, INTERRUPTED)
    return ", ".join(f"{counts[state]} {state}" for state in order if counts[state])


def best_text(best: TrialResult | None, metric: str) -> str:
    """Formats the best trial: `best accuracy 0.91, trial 7`."""
    if best is None:
        return "none is complete yet"
    return f"best {metric} {value_text(best.value)}, trial {best.number}"


def best_table(
    settings: SweepSettings, trials: Sequence[TrialResult], width: int | None = None
) -> list[str]:
    """Returns the best trials, best first, in at most `width` columns."""
    rows = [["trial", *settings.space, settings.metric, "seconds", "steps"]]
    for each in best_first(trials, settings.maximize)[:BEST_SHOWN]:
        numbers = [value_text(each.value), seconds_text(each.seconds), str(each.steps)]
        texts = texts_of(each.parameters)
        rows.append([str(each.number), *(texts[name] for name in settings.space), *numbers])
    return fitted(rows[0], rows[1:], 1, width).splitlines()


def run_again(settings: SweepSettings, trial: TrialResult) -> str:
    """Returns the command line that trains like the trial, without a sweep."""
    command = fill_in(settings.command, trial.parameters, trial.number)
    launcher = ["ciranda", "run", "-np", str(settings.np), *settings.run_options, "--"]
    return shlex.join([*launcher, *command])


def summary(settings: SweepSettings, result: SweepResult, width: int | None = None) -> list[str]:
    """Returns the lines at the end of a sweep; `width`: the columns of a terminal."""
    table = settings.out / "results.csv"
    lines = [f"{len(result.trials)} trials: {states_text(result.trials)}; all are in {table}"]
    if result.best is not None:
        lines += ["", *best_table(settings, result.trials, width), ""]
        lines += [f"Trial {result.best.number} again:", f"  {run_again(settings, result.best)}"]
    return lines


def results_csv(space: Space, trials: Sequence[TrialResult]) -> str:
    first, *others = RESULT_COLUMNS
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([first, *space, *others])
    for each in trials:
        texts = texts_of(each.parameters)
        cells = [each.value, each.state, each.seconds, each.steps]
        table.writerow([each.number, *(texts.get(name, "") for name in space), *cells])
    return text.getvalue()
