"""Ranks that stay up from program to program. What one leaves behind, the next one meets."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from actions import Action
from player import serve
from ranks import Job, start_ranks

START_S = 60.0
HANG_S = 10.0  # a program takes milliseconds
HANG_AGAIN_S = 2.0  # while a shorter one is looked for
GRACE_S = 0.2  # for what the others say, when one has told of a difference


class LiveRanks:
    """Starts them when they are needed, and anew after each program that failed."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._job: Job | None = None
        self._folder: Path | None = None
        self._streams: list[tuple[socket.socket, TextIO]] = []
        self._hang_s = HANG_S

    def verdict(self, program: list[Action]) -> str:
        """ "" if each rank saw what the model says, else what differs."""
        if self._job is None:
            self._start()
        for connection, _ in self._streams:
            connection.sendall(json.dumps(program).encode() + b"\n")
        deadline = time.monotonic() + self._hang_s
        replies, silent = [], []
        for rank, (connection, stream) in enumerate(self._streams):
            try:
                connection.settimeout(max(deadline - time.monotonic(), 0.001))
                line = stream.readline()
                replies.append(json.loads(line) if line else {"difference": f"rank {rank} ended"})
            except TimeoutError:
                silent.append(rank)
                continue
            if replies[-1]["difference"]:
                deadline = min(deadline, time.monotonic() + GRACE_S)
        verdict = "\n".join(filter(None, (reply["difference"] for reply in replies)))
        if not verdict and silent:
            verdict = self._stacks(silent)
        if not verdict and any(reply["joined"] != replies[0]["joined"] for reply in replies):
            verdict = f"join() gave {[reply['joined'] for reply in replies]}"
        if not verdict:
            verdict = _who_was_last(program, replies[0]["joined"])
        if verdict:
            self._hang_s = HANG_AGAIN_S
            self.stop()
        return verdict

    def _stacks(self, silent: list[int]) -> str:
        assert self._job is not None
        try:
            self._job.wait(0.01)
        except AssertionError as stacks:
            return f"ranks {silent} hang\n{stacks}"
        return f"ranks {silent} ended"

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="cr-"))
        path = str(self._folder / "programs")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            listener.settimeout(START_S)
            self._job = start_ranks(serve, self.size, args=[path])
            by_rank = {}
            for _ in range(self.size):
                connection, _ = listener.accept()
                stream = connection.makefile("r")
                by_rank[json.loads(stream.readline())] = (connection, stream)
        self._streams = [by_rank[rank] for rank in range(self.size)]

    def stop(self) -> None:
        for connection, stream in self._streams:
            stream.close()
            connection.close()
        self._streams = []
        if self._job is not None:
            self._job.__exit__(None, None, None)
            self._job = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> LiveRanks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _who_was_last(program: list[Action], joined: list[Any]) -> str:
    """A rank that had as many batches as any: the last of them waited until the rest had joined."""
    joins = [action for action in program if action["do"] == "join"]
    for action, last in zip(joins, joined, strict=True):
        if last not in _may_be_last(action):
            return f"join() gave {last} after batches {action['batches']}"
    return ""


def _may_be_last(action: Action) -> list[int]:
    ops = action["ops"]
    counts = [min(count, len(ops)) for count in action["batches"]]
    everyone = list(range(len(counts)))
    most = max(counts)
    waits = most > 0 and len(ops[most - 1]["members"]) == len(counts)
    return [rank for rank in everyone if counts[rank] == most] if waits else everyone
