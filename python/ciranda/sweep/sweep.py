"""Runs a sweep: trials side by side on this host, each a separate job, until all are done.

result = run_sweep(SweepSettings(command, parse_space(["lr=1e-4..1e-1:log"]), ...))
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from typing import TYPE_CHECKING, Protocol

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.environment import count_cores
from ciranda.launch.run.failure import signal_words
from ciranda.measure.signals import ending_signals
from ciranda.sinks import Run, Sinks
from ciranda.sweep.launch_check import check_launch
from ciranda.sweep.reports import Report
from ciranda.sweep.settings import (
    COMPLETE,
    FAILED,
    INTERRUPTED,
    PRUNED,
    SweepResult,
    SweepSettings,
    TrialResult,
    check,
)
from ciranda.sweep.table import results_csv
from ciranda.sweep.trial_job import TrialJob

if TYPE_CHECKING:
    from ciranda.sweep.study import Study

POLL_S = 0.1  # seconds; a trial takes longer to start
END_LIMIT_S = 30.0  # seconds; the launcher of a trial needs 10 for the slowest ranks


class Listener(Protocol):
    """Callbacks for the progress of a sweep, on the thread of run_sweep()."""

    def opened(self, *, planned: int, done: int, slots: int, threads: int) -> None: ...

    def started(self, trial: TrialResult) -> None: ...

    def reported(self, number: int, report: Report) -> None: ...

    def ended(self, trial: TrialResult, best: TrialResult | None, job: TrialJob) -> None: ...

    def warned(self, text: str) -> None: ...

    def interrupted(self, running: int) -> None: ...

    def tick(self) -> None: ...


def run_sweep(settings: SweepSettings, listener: Listener | None = None) -> SweepResult:
    """Runs the trials that the settings' storage does not have yet. Blocks until they end.

    Failed trials are results. SIGINT, SIGTERM and SIGHUP end all trials. Raises LaunchError if no
    trial can run.
    """
    check(settings)
    check_launch(settings)
    try:
        warn = listener.warned if listener else warnings.warn
        sinks = Sinks(settings.log, settings.out.absolute().name, warn)
    except ValueError as error:
        raise LaunchError(f"--log {error}") from None
    try:
        from ciranda.sweep.study import open_study
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise LaunchError("a sweep needs Optuna, which is not here: pip install optuna") from None
    with open_study(settings) as study:
        return _Sweep(settings, study, sinks, listener).run()


class _Sweep:
    def __init__(
        self, settings: SweepSettings, study: Study, sinks: Sinks, listener: Listener | None
    ) -> None:
        cores = count_cores()
        self._settings = settings
        self._study = study
        self._listener = listener
        self._slots = settings.slots(cores)
        self._threads = settings.threads(cores)
        self._sinks = sinks
        self._logs: dict[int, Run] = {}  # of the running trials, by number
        self._jobs: list[TrialJob] = []  # running
        self._signals: list[int] = []  # received, but not yet forwarded
        self._signal: int | None = None  # the first one received

    def run(self) -> SweepResult:
        started = time.monotonic()
        self._tell_opened()
        with ending_signals(self._signals.append):
            try:
                self._start_trials()
                while self._jobs:
                    time.sleep(POLL_S)
                    self._hand_on_signals()
                    for job in list(self._jobs):
                        self._look_at(job)
                    self._start_trials()
                    if self._listener:
                        self._listener.tick()
            finally:
                self._end_all()
        self._hand_on_signals()  # a signal may arrive after the last trial
        self._write_csv()
        return SweepResult(
            trials=self._study.results(),
            best=self._study.best(),
            seconds=time.monotonic() - started,
            signal=self._signal,
        )

    def _start_trials(self) -> None:
        while self._signal is None and not self._signals and len(self._jobs) < self._slots:
            trial = self._study.ask()
            if trial is None:
                return
            self._jobs.append(
                TrialJob(self._settings, trial.number, trial.parameters, threads=self._threads)
            )
            self._logs[trial.number] = self._sinks.start(f"trial-{trial.number}", trial.parameters)
            if self._listener:
                self._listener.started(trial)

    def _look_at(self, job: TrialJob) -> None:
        code = job.exit_code()  # first, so that all reports of an ended trial are in the file
        for report in job.new_reports(is_over=code is not None):
            stop = self._study.should_stop(job.number, report)
            self._logs[job.number].write({self._settings.metric: report[1]}, step=report[0])
            if self._listener:
                self._listener.reported(job.number, report)
            if stop and code is None:
                job.stop_early()
        if code is not None:
            self._conclude(job, code)

    def _conclude(self, job: TrialJob, code: int) -> None:
        self._jobs.remove(job)
        state, why = self._state_of(job, code)
        value = job.last_value if state == COMPLETE else None
        result = self._study.tell(job.number, state, seconds=job.seconds, value=value, why=why)
        self._write_csv()
        self._logs.pop(job.number).close(failed=state in (FAILED, INTERRUPTED))
        if self._listener:
            self._listener.ended(result, self._study.best(), job)

    def _state_of(self, job: TrialJob, code: int) -> tuple[str, str]:
        if code == 0:
            missing = job.what_is_missing()
            return (FAILED, missing) if missing else (COMPLETE, "")
        if job.stopped_early:
            return PRUNED, ""
        if self._signal is not None:
            return INTERRUPTED, ""
        return FAILED, f"exit code {code}" if code > 0 else signal_words(-code)

    def _tell_opened(self) -> None:
        if self._listener:
            done = sum(each.state != INTERRUPTED for each in self._study.results())
            planned = done + self._study.left
            self._listener.opened(
                planned=planned, done=done, slots=self._slots, threads=self._threads
            )

    def _write_csv(self) -> None:
        """Replaces results.csv atomically: a reader sees the old table or the new one."""
        path = self._settings.out / "results.csv"
        draft = path.with_name(path.name + ".new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(results_csv(self._settings.space, self._study.results()))
            os.replace(draft, path)
        except OSError as error:
            raise LaunchError(f"cannot write {path}: {error.strerror}") from error

    # The end

    def _hand_on_signals(self) -> None:
        """Forwards each signal to all launchers; the first is polite, the second is not."""
        while self._signals:
            came = self._signals.pop(0)
            if self._signal is None:
                self._signal = came
                if self._listener:
                    self._listener.interrupted(len(self._jobs))
            for job in self._jobs:
                job.send(came)

    def _end_all(self) -> None:
        """Ends the trials that an error has left running."""
        for job in self._jobs:
            job.send(signal.SIGTERM)
        for job in self._jobs:
            job.wait(END_LIMIT_S)
        for log in self._logs.values():
            log.close(failed=True)
