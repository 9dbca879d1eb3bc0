"""Starts the real launcher and looks at real processes in /proc."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import warm
from tagged import tagged_processes

try:
    import ciranda
except ImportError:  # not installed yet
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python"))
    import ciranda

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # tests/
from net.fixtures import make_network  # noqa: F401 - hosts for tests of ssh

COMMAND = [sys.executable, "-m", "ciranda"]
_INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def ignoring(*ignored: signal.Signals) -> Callable[[], None]:
    """For `preexec_fn`: signals as a terminal's program has them, whoever started the tests
    (nohup, a shell's `&`), but for these."""

    def set_signals() -> None:
        for number in _INHERITED:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    return set_signals


def wait_until(condition: Callable[[], bool], limit_s: float) -> float:
    """Waits for `condition`; returns how long it took, or fails."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit_s, f"not so within {limit_s} s"
        time.sleep(0.01)
    return time.monotonic() - started


class Launcher:
    """The launcher under test. A tag in the environment finds its whole tree again."""

    is_warm = False  # true: it and its Python programs start with torch imported, see warm.py

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Short: the launcher puts Unix sockets there, whose paths are limited.
        self.runtime_dir = Path(tempfile.mkdtemp(prefix="ct-"))
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.tag = f"CIRANDA_TEST_TAG={uuid.uuid4().hex}"
        self.environment = {
            name: text
            for name, text in os.environ.items()
            if name not in ("NO_COLOR", "OMP_NUM_THREADS", "COLUMNS", "PYTHONUNBUFFERED")
        }
        name, _, text = self.tag.partition("=")
        self.environment |= {
            name: text,
            "XDG_RUNTIME_DIR": str(self.runtime_dir),
            "TMPDIR": str(self.temporary),
            "TERM": "xterm",
            "PYTHONIOENCODING": "utf-8",
        }
        self.environment["PYTHONPATH"] = str(Path(ciranda.__file__).resolve().parents[1])

    def script(self, text: str, name: str = "rank.py") -> str:
        path = self.folder / name
        path.write_text("import os, sys, time, signal\nrank = int(os.environ['RANK'])\n" + text)
        return str(path)

    def run(
        self,
        *arguments: str,
        stdin: str = "",
        environment: dict[str, str] | None = None,
        ignored: tuple[signal.Signals, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        told = {**self.environment, **(environment or {})}
        if self.is_warm:
            assert not ignored
            return warm.run(
                [*COMMAND[1:], "run", *arguments], env=told, cwd=self.folder, stdin=stdin
            )
        return subprocess.run(
            [*COMMAND, "run", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=told,
            timeout=60,
            preexec_fn=ignoring(*ignored),
        )

    def start(
        self, *arguments: str, limits: str = "true", ignored: tuple[signal.Signals, ...] = ()
    ) -> subprocess.Popen[str] | warm.Process:
        """`limits`: what a shell is told before it becomes the launcher."""
        if self.is_warm:
            assert limits == "true" and not ignored
            return warm.Process([*COMMAND[1:], "run", *arguments], self.environment, self.folder)
        return subprocess.Popen(
            ["sh", "-c", f'{limits}; exec "$@"', "sh", *COMMAND, "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
            preexec_fn=ignoring(*ignored),  # noqa: PLW1509 - no test has threads here
        )

    def processes(self) -> list[int]:
        """Every living process that inherited our tag, wherever it hangs in the tree."""
        return tagged_processes(self.tag)

    def supervisor_of(self, launcher: subprocess.Popen[str]) -> int:
        for pid in self.processes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == launcher.pid:
                return pid
        raise AssertionError("no supervisor")

    def job_dirs(self) -> list[Path]:
        return list(self.runtime_dir.iterdir())

    def log_dirs(self) -> list[Path]:
        return list(self.temporary.glob("ciranda-logs-*"))

    wait_until = staticmethod(wait_until)

    def wait_for_files(self, *names: str) -> None:
        wait_until(lambda: all((self.folder / name).exists() for name in names), 20)


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    left = launcher.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes of the job were left behind"
    job_dirs = launcher.job_dirs()
    shutil.rmtree(launcher.runtime_dir)
    assert not job_dirs, "the job's folder was left behind"


SSH_STAND_IN = """#!/bin/sh
for command; do :; done
export SSH_CONNECTION="127.0.0.1 1 127.0.0.1 22"
exec sh -c "$command"
"""


@pytest.fixture
def ssh_stand_in(launcher: Launcher) -> None:
    """For elastic jobs: the hosts are this one, and processes can import fake_member."""
    shutil.copy(Path(__file__).with_name("fake_member.py"), launcher.folder)
    (launcher.folder / "ssh").write_text(SSH_STAND_IN)
    (launcher.folder / "ssh").chmod(0o755)
    launcher.environment["PATH"] = f"{launcher.folder}:{launcher.environment['PATH']}"


@pytest.fixture
def warm_start(launcher: Launcher) -> None:
    """For tests of what jobs do, and not of how processes start and end."""
    launcher.is_warm = True


@pytest.fixture
def gone() -> Callable[[Launcher], float]:
    """Waits until the whole tree is gone, and says how long that took."""
    return lambda launcher: wait_until(lambda: not launcher.processes(), 10)
