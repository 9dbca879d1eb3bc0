"""The job of one trial: `ciranda run` in a separate process and session."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from ciranda.launch.errors import LaunchError
from ciranda.launch.run.local import start_program
from ciranda.sweep import REPORT_FILE
from ciranda.sweep.launch_check import own_folders
from ciranda.sweep.reports import Report, Reports, match_lines, parse_report
from ciranda.sweep.settings import SweepSettings
from ciranda.sweep.space import Parameters, fill_in

LAST_LINES = 12  # of a failed trial, shown on the console
_TAIL_BYTES_MAX = 16_384
_WAIT_S = 0.05


class TrialJob:
    """A job that starts at once, and ends with this process in any case (PDEATHSIG)."""

    def __init__(
        self, settings: SweepSettings, number: int, parameters: Parameters, *, threads: int
    ) -> None:
        self.number = number
        self.stopped_early = False
        self.folder = settings.out.absolute() / f"trial-{number}"
        self.output = self.folder / "output.log"
        report, own_output = self.folder / "report.jsonl", self.folder / "rank-0.log"
        if settings.metric_regex is None:
            self._reports = Reports(report, parse_report)
        else:
            self._reports = Reports(own_output, match_lines(settings.metric_regex))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in (report, own_output):  # left by a sweep with a lost journal
                path.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            output = os.open(self.output, flags, 0o666)
        except OSError as error:
            raise LaunchError(f"cannot write {self.folder}: {error.strerror}") from error
        environment = {"OMP_NUM_THREADS": str(threads), **os.environ, REPORT_FILE: str(report)}
        argv = _launcher(settings, self.folder, number)
        argv += fill_in(settings.command, parameters, number)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pid = start_program(
                argv, environment, stdin=nothing, stdout=output, stderr=output
            )
        finally:
            os.close(nothing)
            os.close(output)
        self._started = time.monotonic()
        self._exit_code: int | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def exit_code(self) -> int | None:
        """Returns the exit code; None while the job runs. Does not block."""
        if self._exit_code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid != 0:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code

    def new_reports(self, *, is_over: bool) -> list[Report]:
        return self._reports.new(is_over=is_over)

    @property
    def last_value(self) -> float | None:
        return self._reports.last

    def what_is_missing(self) -> str:
        """Returns why a successful trial has no value; empty if it has one."""
        return self._reports.what_is_missing()

    def stop_early(self) -> None:
        if not self.stopped_early:
            self.stopped_early = True
            self.send(signal.SIGTERM)

    def send(self, number: int) -> None:
        """Sends a signal to the launcher, which ends its ranks politely within ten seconds."""
        if self.exit_code() is None:  # not reaped, so no other process has its pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def wait(self, limit_s: float) -> None:
        """Blocks until the job has ended.

        After `limit_s` seconds it kills the launcher; the launcher's supervisor then kills the
        ranks.
        """
        deadline = time.monotonic() + limit_s
        while self.exit_code() is None:
            if time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                deadline += limit_s
            time.sleep(_WAIT_S)

    def last_lines(self) -> list[str]:
        """Returns the last output of the ranks and the launcher."""
        with open(self.output, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES_MAX))
            lines = file.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-LAST_LINES:]


def _launcher(settings: SweepSettings, folder: Path, number: int) -> list[str]:
    # The host is named, because within a Slurm allocation `ciranda run` would take all nodes.
    where = ["-np", str(settings.np), "-H", f"localhost:{settings.np}", "--log-dir", str(folder)]
    options = [*settings.run_options, *own_folders(settings, number)]
    return [sys.executable, "-m", "ciranda", "run", *where, *options, "--"]
