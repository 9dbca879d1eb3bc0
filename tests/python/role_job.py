"""A job of the launcher whose processes are known by their roles, so that one can be killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import warm


class RoleJob:
    """`ciranda run ARGUMENTS`, which ends with the block."""

    def __init__(self, *arguments: str) -> None:
        self.pids: dict[str, int] = {}  # of the latest life of "rank 0", "server 0", "evaluator", …
        self.started_again: list[str] = []
        self.printed: list[tuple[float, str]] = []  # lines, and how many seconds after the start
        self._said: list[str] = []
        self._began = time.monotonic()
        null = os.open(os.devnull, os.O_RDONLY)
        pipes = [os.pipe(), os.pipe()]
        writers = [write for _, write in pipes]
        self._process = warm.Process(
            ["-m", "ciranda", "run", "--verbose", *arguments],
            os.environ,
            Path.cwd(),
            streams=(null, writers[0], writers[1]),
        )
        for fd in (null, *writers):
            os.close(fd)
        stdout, stderr = (os.fdopen(read, errors="replace") for read, _ in pipes)
        self._readers = [
            threading.Thread(target=self._read_output, args=(stdout,), daemon=True),
            threading.Thread(target=self._read_errors, args=(stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> RoleJob:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # which ends the job's tree
        self._process.wait()
        self._read_rest()

    def kill(self, role: str) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.kill(self.pids[role], signal.SIGKILL)

    def ends_within(self, seconds: float | None) -> bool:
        """AssertionError where it ends with an error."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._read_rest()
        assert code == 0, self.text() + "".join(self._said)
        return True

    def wait_for(self, text: str) -> None:
        """Until it has printed that."""
        while not any(text in line for _, line in self.printed):
            assert not self.ends_within(0.01), f"{text!r} is not in {self.text()}"

    def text(self) -> str:
        return "".join(line for _, line in self.printed)

    def _read_rest(self) -> None:
        for reader in self._readers:
            reader.join()

    def _read_output(self, stream: Iterable[str]) -> None:
        for line in stream:
            self.printed.append((time.monotonic() - self._began, line))

    def _read_errors(self, stream: Iterable[str]) -> None:
        role = r"ciranda: (rank \d+|server \d+|coordinator|evaluator)"
        for line in stream:
            self._said.append(line)
            if found := re.match(rf"{role} is pid (\d+)", line):
                self.pids[found[1]] = int(found[2])
            elif found := re.match(rf"{role} was ended by .* started again", line):
                self.started_again.append(found[1])
