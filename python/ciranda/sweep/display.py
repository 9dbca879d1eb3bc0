"""Shows a sweep while it runs: lines that stay, and on a terminal a table below them."""

from __future__ import annotations

import contextlib
import shutil
import time
from dataclasses import dataclass
from typing import TextIO

from ciranda.sweep.reports import Report
from ciranda.sweep.settings import COMPLETE, FAILED, INTERRUPTED, TrialResult
from ciranda.sweep.table import best_text, parameters_text, seconds_text, value_text
from ciranda.sweep.trial_job import TrialJob

REPORT_EVERY_S = 5.0  # seconds between lines about a trial, if the stream is no terminal
_DRAW_EVERY_S = 0.5


@dataclass
class _Running:
    trial: TrialResult
    started: float
    report: Report | None = None
    said: float = float("-inf")


class Display:
    """Shows a sweep; a Listener of run_sweep()."""

    def __init__(self, stream: TextIO, metric: str) -> None:
        self._stream = stream
        self._metric = metric
        self._live = stream.isatty()
        self._drawn = 0  # lines of the table
        self._drawn_at = 0.0
        self._running: dict[int, _Running] = {}
        self._planned = self._done = self._slots = 0
        self._best: TrialResult | None = None

    def opened(self, *, planned: int, done: int, slots: int, threads: int) -> None:
        self._planned, self._done, self._slots = planned, done, slots
        word = "thread" if threads == 1 else "threads"
        before = f", {done} of them done before" if done else ""
        self._say(f"{planned} trials{before}; {slots} side by side, {threads} {word} a rank")

    def started(self, trial: TrialResult) -> None:
        self._running[trial.number] = _Running(trial, time.monotonic())
        if not self._live:
            self._say(f"trial {trial.number} started: {parameters_text(trial.parameters)}")

    def reported(self, number: int, report: Report) -> None:
        running, now = self._running[number], time.monotonic()
        running.report = report
        if not self._live and now - running.said >= REPORT_EVERY_S:
            running.said = now
            self._say(f"trial {number}: {self._report_text(report)}")

    def ended(self, trial: TrialResult, best: TrialResult | None, job: TrialJob) -> None:
        del self._running[trial.number]
        self._done += trial.state != INTERRUPTED
        self._best = best
        self._say(f"trial {trial.number} {self._end_text(trial)}; {best_text(best, self._metric)}")
        if trial.state == FAILED:
            self._say(f"  the end of {job.output}:")
            for line in job.last_lines():
                self._say(f"    {line}")

    def warned(self, text: str) -> None:
        self._say(text)

    def interrupted(self, running: int) -> None:
        self._say(f"ending {running} trials; Ctrl-C again ends them at once")

    def tick(self) -> None:
        now = time.monotonic()
        if self._live and now - self._drawn_at >= _DRAW_EVERY_S:
            self._drawn_at = now
            self._erase()
            self._draw(now)

    def close(self) -> None:
        """Erases the table and draws no other."""
        self._erase()
        self._live = False

    def _say(self, line: str) -> None:
        self._erase()
        self._write(f"{line}\n")

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

    # The table

    def _draw(self, now: float) -> None:
        width = shutil.get_terminal_size().columns - 1
        lines = [
            f"trial {number}  {parameters_text(each.trial.parameters)}  "
            f"{self._report_text(each.report)}  {now - each.started:.0f} s"
            for number, each in self._running.items()
        ]
        lines.append(f"{self._done} of {self._planned}; {best_text(self._best, self._metric)}")
        self._write("".join(f"{line[:width]}\n" for line in lines))
        self._drawn = len(lines)

    def _erase(self) -> None:
        if self._drawn:
            self._write(f"\x1b[{self._drawn}A\r\x1b[J")
            self._drawn = 0

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a reader that has left must not end the sweep
            self._stream.write(text)
            self._stream.flush()
