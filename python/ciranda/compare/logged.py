"""Writes a run of a comparison to the sinks of --log: its setting, its figures, its curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ciranda.compare.comparison import Planned, describe
from ciranda.compare.figures import FIGURES, Run
from ciranda.compare.results import Results
from ciranda.compare.setting import Setting
from ciranda.sinks import Sinks

CURVE = "accuracy_by_ms"  # a step is a millisecond of the training


def log_run(sinks: Sinks, figures: Sequence[str], results: Results, planned: Planned) -> None:
    """Writes a run that has a result; `figures`: names of FIGURES. A figure comes with step 0."""
    setting, number = planned.setting, planned.number
    outcome = results.at(setting, number)
    if outcome is None:
        return

    def other(setting: Setting) -> Run | None:
        found = results.at(setting, number)
        return found if found and "error" not in found else None

    name = f"{describe(setting)}, round {number + 1}"
    run = sinks.start(name, {**asdict(setting), "round": number + 1})
    if "error" not in outcome:
        told = {each: FIGURES[each].of(outcome, setting, other) for each in figures}
        run.write({each: value for each, value in told.items() if value is not None}, step=0)
        for at_s, accuracy in outcome["ranks"][0].get("curve") or []:
            run.write({CURVE: accuracy}, step=round(1000 * at_s))
    run.close(failed="error" in outcome)
