"""Writes docs/studies.md, and the tables of docs/benchmarks.md between their marks, from what
`ciranda compare` has measured: copies of its JSON files in benchmarks/results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ciranda.compare import study
from ciranda.compare.table import beside_each_other, markdown, show_figure
from ciranda.measure.samples import Samples

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "studies.md"
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "benchmarks" / "results"
MARKS = ("<!-- made by tools/make_studies_page.py -->", "<!-- end of what is made -->")

_RANKS = 2

_HEAD = """\
<!-- Made by tools/make_studies_page.py from benchmarks/results/study-*.json; edit that. -->
# What the studies compared

Five published studies, measured again by one command each ([compare.md](compare.md)), beside what
they printed. Every table here is what the command wrote on one machine, named below it. Seconds and
images/s of the studies are those of their GPUs and networks, so they stand beside ours, not in one
table with them.
"""


def kept(number: str) -> dict[str, Any] | None:
    path = RESULTS / f"study-{number}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def page() -> str:
    parts = [_HEAD]
    for number, path in study.paths().items():
        told = study.load(path, study.Request("quick"))
        found = kept(number)
        parts.append(f"## {number}: {told.title}")
        parts.append(told.about.strip())
        parts += _measured(found) if found else ["Not measured as a whole yet."]
        if told.published:
            parts.append("What the study printed:")
            parts.append(markdown(("what", "figure"), told.published))
        parts.append(told.not_comparable.strip())
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def _measured(found: dict[str, Any]) -> list[str]:
    machine = dict(found["machine"])
    mode = machine.pop("mode")
    parts = [f"Measured by `ciranda compare --study {found['study']} --{mode}`:"]
    for table in found["tables"]:
        parts += [f"### {table['title']}", table["about"].strip(), table["markdown"]]
    shown = ", ".join(f"{name} {value}" for name, value in machine.items())
    return [*parts, f"Machine: {shown}."]


def benchmarks_tables() -> str:
    """Of studies 003 and 002: what a reader wants to know first."""
    return "\n\n".join([_seconds_table(), _rates_table()])


def _seconds_table() -> str:
    rows = []
    for row in _rows("003"):
        figures = [_show(row, name) for name in ("total_s", "accuracy")]
        rows.append([str(row["setting"]["ranks"]), row["system"], *figures])
    return markdown(("ranks", "Fashion-MNIST, 10 epochs", "seconds", "accuracy, %"), rows)


def _rates_table() -> str:
    """Systems beside each other, with two ranks; one process where there is no other."""
    told = []
    for row in _rows("002"):
        setting = row["setting"]
        if setting["times"] == 1 and setting["ranks"] <= _RANKS:
            axes = (setting["model"], str(setting["batch"]))
            told.append((axes, row["system"], _show(row, "second_images_per_s")))
    systems, lines = beside_each_other(told)
    return markdown(("images/s, two ranks", "batch", *systems), lines)


def _rows(number: str) -> list[dict[str, Any]]:
    found = kept(number)
    tables = found["tables"] if found else []
    return [row for table in tables for row in table["rows"] if not row["failed"]]


def _show(row: dict[str, Any], figure: str) -> str:
    return show_figure(figure, Samples(row["figures"][figure]))


def benchmarks() -> str:
    """The page with today's tables between its marks."""
    begin, end = map(re.escape, MARKS)
    made = f"{MARKS[0]}\n{benchmarks_tables()}\n{MARKS[1]}"
    return re.sub(f"(?s){begin}.*?{end}", lambda _: made, BENCHMARKS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    BENCHMARKS.write_text(benchmarks(), encoding="utf-8")
