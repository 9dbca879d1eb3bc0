"""Results so far: one line of JSON for each run, in a file that only grows."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ciranda.compare.setting import Setting

_MUST_BE_ALIKE = ("cpu", "cores", "python", "torch", "ciranda")


class Results:
    """The results of one study, in one folder. A run with a result is not measured again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "runs.jsonl"
        self._runs: dict[tuple[str, int], dict[str, Any]] = {}
        if self._path.exists():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                self._remember(line)

    def _remember(self, line: str) -> None:
        try:
            run = json.loads(line)
            key = json.dumps(run["setting"], sort_keys=True)
            self._runs[key, run["round"]] = run
        except (ValueError, KeyError, TypeError):
            return  # cut off by a crash; the run will be measured again

    def on(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the machine of the results in the folder; this machine if the folder is empty.

        Raises ValueError if this machine or its versions differ.
        """
        path = self.folder / "machine.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name in _MUST_BE_ALIKE:
            if kept.get(name) != facts[name]:
                raise ValueError(
                    f"{self.folder} has figures with {name} {kept.get(name)}, and here it is "
                    f"{facts[name]}: give another --out"
                )
        return kept

    def has(self, setting: Setting, number: int) -> bool:
        """Returns true if the run has a result; a failed run has one."""
        return (setting.key(), number) in self._runs

    def add(self, setting: Setting, number: int, run: dict[str, Any]) -> None:
        kept = {"setting": json.loads(setting.key()), "round": number, **run}
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file:
            cut = file.tell() > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read() != b"\n"
            # A line that a crash has cut off must not merge with the next one.
            file.write(b"\n" * cut + json.dumps(kept).encode() + b"\n")
        self._runs[setting.key(), number] = kept

    def of(self, setting: Setting) -> list[dict[str, Any]]:
        """Returns all runs of a setting, in the order of rounds."""
        key = setting.key()
        return [run for (its, _), run in sorted(self._runs.items()) if its == key]

    def at(self, setting: Setting, number: int) -> dict[str, Any] | None:
        return self._runs.get((setting.key(), number))
