"""Reads the reports of a trial from a growing file: lines with a step and a value, or neither."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

Report = tuple[int, float]  # step, value
_LINE_END = re.compile(rb"[\r\n]")  # a progress bar's lines end with a carriage return


class GrowingFile:
    """Reads a file that another process appends to; returns each line once it is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_lines(self, *, is_over: bool) -> list[str]:
        """Returns the new lines; `is_over`: the file is complete, so its rest is a line too."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except FileNotFoundError:  # nothing is reported yet
            return []
        self._offset += len(chunk)
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        if is_over and self._rest:
            lines.append(self._rest)
            self._rest = b""
        return [line.decode(errors="replace") for line in lines]


ParseLine = Callable[[str], Report | None]


def parse_report(line: str) -> Report | None:
    """Parses a line of ciranda.sweep.report(); returns None for any other line."""
    try:
        content = json.loads(line)
        step, value = int(content["step"]), float(content["value"])
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return (step, value) if step >= 0 else None


def match_lines(regex: str) -> ParseLine:
    """Returns a parser for lines of output that name a value; the n-th such line is step n."""
    pattern, step = re.compile(regex), 0

    def parse(line: str) -> Report | None:
        nonlocal step
        match = pattern.search(line)
        try:
            value = float(match[1]) if match else None
        except (ValueError, TypeError):
            return None
        if value is None:
            return None
        step += 1
        return step, value

    return parse


class Reports:
    """The reports of one trial; ignores a step that a restarted rank reports again."""

    def __init__(self, path: Path, parse: ParseLine) -> None:
        self._file = GrowingFile(path)
        self._parse = parse
        self._steps: set[int] = set()
        self.last: float | None = None

    def new(self, *, is_over: bool) -> list[Report]:
        found = []
        for line in self._file.new_lines(is_over=is_over):
            report = self._parse(line)
            if report is not None and report[0] not in self._steps:
                self._steps.add(report[0])
                self.last = report[1]
                found.append(report)
        return found

    def what_is_missing(self) -> str:
        if self.last is None:
            return "no value was reported"
        return "" if math.isfinite(self.last) else f"its last value is {self.last}"
