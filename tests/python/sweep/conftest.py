"""Starts real sweeps, and looks at the processes that they have started."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tagged import tagged_processes

import ciranda

_LIMIT_S = 60
_INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def _default_signals() -> None:
    for number in _INHERITED:  # whoever started the tests may have ignored them
        signal.signal(number, signal.SIG_DFL)


class Sweeps:
    """Sweeps in a folder. A tag in the environment finds all that they have started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tag = f"CIRANDA_TEST_TAG={uuid.uuid4().hex}"
        name, _, text = self._tag.partition("=")
        self.environment = {**os.environ, name: text, "PYTHONIOENCODING": "utf-8"}
        self.environment.pop("OMP_NUM_THREADS", None)
        self.environment["PYTHONPATH"] = str(Path(ciranda.__file__).resolve().parents[1])
        self.command = [sys.executable, "-m", "ciranda", "sweep"]

    def script(self, text: str) -> None:
        """`trial.py`, whose arguments are `words`."""
        begin = "import os, sys, time\nfrom ciranda.sweep import report\nwords = sys.argv[1:]\n"
        (self.folder / "trial.py").write_text(begin + text)

    def run(
        self, *arguments: str, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**self.environment, **(environment or {})},
            timeout=_LIMIT_S,
            preexec_fn=_default_signals,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
            start_new_session=True,
            preexec_fn=_default_signals,  # noqa: PLW1509 - no test has threads here
        )

    def processes(self) -> list[int]:
        """Every living process that inherited the tag."""
        return tagged_processes(self._tag)

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def results(self, out: str = "sweep-results") -> list[dict[str, str]]:
        with open(self.folder / out / "results.csv", newline="") as file:
            return list(csv.DictReader(file))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        started = time.monotonic()
        while not condition():
            assert time.monotonic() - started < _LIMIT_S
            time.sleep(0.02)


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Sweeps]:
    pytest.importorskip("optuna")
    sweeps = Sweeps(tmp_path)
    yield sweeps
    left = sweeps.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes of trials were left behind"
