"""Shows a sweep while it runs: lines that stay, and on a terminal a table below them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TextIO

from ciranda.measure.live_lines import LiveLines
from ciranda.sweep.reports import Report
from ciranda.sweep.settings import COMPLETE, FAILED, INTERRUPTED, TrialResult
from ciranda.sweep.table import best_text, parameters_text, seconds_text, value_text
from ciranda.sweep.trial_job import TrialJob

REPORT_EVERY_S = 5.0  # seconds between lines about a trial, if the stream is no terminal


@dataclass
class _Running:
    trial: TrialResult
    started: float
    report: Report | None = None
    said: float = float("-inf")


class Display:
    """Shows a sweep; a Listener of run_sweep()."""

    def __init__(self, stream: TextIO, metric: str) -> None:
        self._lines = LiveLines(stream, every_s=0.5)
        self._metric = metric
        self._running: dict[int, _Running] = {}
        self._planned = self._done = self._slots = 0
        self._best: TrialResult | None = None

    def opened(self, *, planned: int, done: int, slots: int, threads: int) -> None:
        self._planned, self._done, self._slots = planned, done, slots
        word = "thread" if threads == 1 else "threads"
        before = f", {done} of them done before" if done else ""
        self._lines.say(f"{planned} trials{before}; {slots} side by side, {threads} {word} a rank")

    def started(self, trial: TrialResult) -> None:
        self._running[trial.number] = _Running(trial, time.monotonic())
        if not self._lines.are_shown:
            self._lines.say(f"trial {trial.number} started: {parameters_text(trial.parameters)}")

    def reported(self, number: int, report: Report) -> None:
        running, now = self._running[number], time.monotonic()
        running.report = report
        if not self._lines.are_shown and now - running.said >= REPORT_EVERY_S:
            running.said = now
            self._lines.say(f"trial {number}: {self._report_text(report)}")

    def ended(self, trial: TrialResult, best: TrialResult | None, job: TrialJob) -> None:
        del self._running[trial.number]
        self._done += trial.state != INTERRUPTED
        self._best = best
        self._lines.say(
            f"trial {trial.number} {self._end_text(trial)}; {best_text(best, self._metric)}"
        )
        if trial.state == FAILED:
            self._lines.say(f"  the end of {job.output}:")
            for line in job.last_lines():
                self._lines.say(f"    {line}")

    def warned(self, text: str) -> None:
        self._lines.say(text)

    def interrupted(self, running: int) -> None:
        self._lines.say(f"ending {running} trials; Ctrl-C again ends them at once")

    def tick(self) -> None:
        if self._lines.is_due():
            self._lines.draw(self._table())

    def close(self) -> None:
        """Erases the table; tick() is not called again."""
        self._lines.erase()

    def _end_text(self, trial: TrialResult) -> str:
        after = f"after {seconds_text(trial.seconds)} s"
        what = f"{self._metric} {value_text(trial.value)}, step {trial.steps}"
        parameters = parameters_text(trial.parameters)
        if trial.state == COMPLETE:
            return f"ended {after}: {what} ({parameters})"
        if trial.state == FAILED:
            return f"failed {after}: {trial.why} ({parameters})"
        return f"{trial.state} {after}: {what} ({parameters})"

    def _report_text(self, report: Report | None) -> str:
        if report is None:
            return "no value yet"
        return f"step {report[0]}, {self._metric} {value_text(report[1])}"

    def _table(self) -> list[str]:
        now = time.monotonic()
        lines = [
            f"trial {number}  {parameters_text(each.trial.parameters)}  "
            f"{self._report_text(each.report)}  {now - each.started:.0f} s"
            for number, each in self._running.items()
        ]
        lines.append(f"{self._done} of {self._planned}; {best_text(self._best, self._metric)}")
        return lines
