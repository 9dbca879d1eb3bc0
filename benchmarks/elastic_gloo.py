"""torch's Gloo, whose group is formed anew when a process is killed."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

from benchmarks.common import WORKERS, one_thread_env
from benchmarks.elastic_jobs import warm


class Gloo:
    """Processes of workers/gloo_reconfigure.py, of which this process names the members."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._members: list[warm.Process] = []
        self._number = 0

    def start(self, count: int) -> None:
        for number in range(count):
            script = [str(WORKERS / "gloo_reconfigure.py"), str(number)]
            self._members.append(warm.Process(script, one_thread_env(), self._folder))
        self._name_members()
        self._first_sum()

    def _name_members(self) -> None:
        self._number += 1
        (self._folder / "next").write_text(json.dumps([each.pid for each in self._members]))
        os.rename(self._folder / "next", self._folder / f"members-{self._number}")

    def _first_sum(self) -> int:
        """Waits for the first sum of the newest group; returns its time."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            times = [
                int(at)
                for path in self._folder.glob("log-*")
                for number, at in (line.split() for line in path.read_text().splitlines())
                if int(number) == self._number
            ]
            if times:
                return min(times)
            time.sleep(0.005)
        raise AssertionError("Gloo makes no sum")

    def pause_ms(self, rng: random.Random) -> float:
        """Kills a member; returns the time to the next sum of the others."""
        time.sleep(rng.uniform(0.1, 0.2))
        victim = self._members.pop(rng.randrange(len(self._members)))
        killed_at = time.monotonic_ns()
        victim.kill()
        self._name_members()
        return (self._first_sum() - killed_at) / 1e6

    def close(self) -> None:
        for each in self._members:
            each.kill()
            each.wait()
