"""The files of a run: JSON with everything, which --compare reads, and CSV for spreadsheets."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ciranda.bench.row import Row
from ciranda.launch.errors import LaunchError

FORMAT = "ciranda-bench"
VERSION = 1


@dataclass
class Record:
    command: Sequence[str]
    machine: Mapping[str, Any]
    ranks: int
    device: str
    rows: Sequence[Row]
    hosts: int = 1
    absent: Mapping[str, str] = field(default_factory=dict)  # by side, the reason
    refused: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by reason, the cases

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "command": list(self.command),
            "machine": dict(self.machine),
            "ranks": self.ranks,
            "device": self.device,
            "hosts": self.hosts,
            "rows": [row.as_json() for row in self.rows],
            "absent": dict(self.absent),
            "refused": dict(self.refused),
        }


def write_json(path: str, record: Record) -> None:
    _write(path, json.dumps(record.as_json(), indent=1) + "\n", "--json")


def write_csv(path: str, rows: Sequence[Row]) -> None:
    """Writes one line for each row of the tables, with only the least and greatest round."""
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer: csv.DictWriter[str] | None = None
            for row in rows:
                values = row.as_json()
                del values["rounds_us"]
                values |= {"round_min_us": row.rounds_us.low, "round_max_us": row.rounds_us.high}
                if writer is None:
                    writer = csv.DictWriter(file, list(values))
                    writer.writeheader()
                writer.writerow(values)
    except OSError as error:
        raise LaunchError(f"--csv {path}: {error.strerror}") from error


def _write(path: str, text: str, option: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"{option} {path}: {error.strerror}") from error


def read_json(path: str, option: str) -> Record:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise LaunchError(f"{option} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise LaunchError(f"{option} {path}: not UTF-8 text") from error
    try:
        return parse(json.loads(text))
    except json.JSONDecodeError as error:
        raise LaunchError(f"{option} {path}: not JSON: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise LaunchError(
            f"{option} {path}: not a file of `ciranda bench --json`: {why}"
        ) from error


def parse(json_value: Any) -> Record:
    """Makes a Record; raises ValueError, TypeError, AttributeError or KeyError for other JSON."""
    if not isinstance(json_value, dict) or json_value.get("format") != FORMAT:
        raise ValueError(f'no "format": "{FORMAT}" in it')
    if json_value["version"] != VERSION:
        raise ValueError(
            f"version {json_value['version']!r}, and this ciranda reads {VERSION}; measure again"
        )
    return Record(
        command=[str(word) for word in json_value["command"]],
        machine=dict(json_value["machine"]),
        ranks=int(json_value["ranks"]),
        device=str(json_value["device"]),
        hosts=int(json_value.get("hosts", 1)),
        rows=[Row.of_json(row) for row in json_value["rows"]],
        absent=dict(json_value.get("absent", {})),
        refused=dict(json_value.get("refused", {})),
    )
