"""Writes results as files: Markdown, one self-contained HTML page, CSV, JSON and PNG."""

from __future__ import annotations

import html
import io
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ciranda.compare import pictures
from ciranda.compare.results import Results
from ciranda.compare.setting import Setting
from ciranda.compare.study import Study, Table
from ciranda.compare.system import System
from ciranda.compare.table import (
    Grid,
    Row,
    contents,
    csv_text,
    heads,
    markdown,
    rows_of,
    table_markdown,
)
from ciranda.measure.fitted import fitted

Filled = Sequence[tuple[Table, Sequence[Row]]]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 0.9rem; margin: 1rem 0; }
.wide { overflow-x: auto; }
th, td { border-bottom: 1px solid #8886; padding: 0.25rem 0.7rem; text-align: right; }
th { text-align: left; vertical-align: bottom; }
td.word { text-align: left; }
figure { margin: 1rem 0; background: white; display: inline-block; max-width: 100%; }
figure svg { max-width: 100%; height: auto; display: block; }
"""


def write(
    study: Study,
    systems: Mapping[str, System],
    results: Results,
    missing: Callable[[Setting], str | None],
    facts: Mapping[str, Any],
    width: int | None = None,
) -> str:
    """Writes all files into the folder of the results; returns the tables.

    `width`: the columns of a terminal, or None for Markdown.
    """
    filled = [(t, rows_of(t, systems, results, missing)) for t in study.tables]
    drawn = pictures.draw(filled)
    name, folder = f"study-{study.number}", results.folder
    folder.mkdir(parents=True, exist_ok=True)
    text = as_markdown(study, filled, facts)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.html").write_text(_as_html(study, filled, facts, drawn), encoding="utf-8")
    (folder / f"{name}.csv").write_text(csv_text(filled), encoding="utf-8")
    (folder / f"{name}.json").write_text(_as_json(study, filled, facts), encoding="utf-8")
    for title, figure in drawn.items():
        figure.savefig(folder / f"{name}-{title}.png", dpi=110)
    return text if width is None else as_text(study, filled, facts, width)


def machine_line(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


# --- Markdown, and tables of a terminal -----------------------------------------------------------


@dataclass(frozen=True)
class _Heading:
    text: str
    level: int  # 0 for the study


def _parts(study: Study, filled: Filled, facts: Mapping[str, Any]) -> list[_Heading | str | Grid]:
    parts: list[_Heading | str | Grid] = [_Heading(f"Study {study.number}: {study.title}", 0)]
    parts.append(study.about.strip())
    for table, rows in filled:
        parts += [_Heading(table.title, 1), table.about.strip(), *contents(table, rows)]
    if study.published:
        parts.append(_Heading("What the study printed", 1))
        parts.append(Grid(("what", "figure"), study.published, 1))
        parts.append(study.not_comparable.strip())
    parts.append(f"Machine: {machine_line(facts)}")
    return [part for part in parts if part != ""]


def as_markdown(study: Study, filled: Filled, facts: Mapping[str, Any]) -> str:
    def shown(part: _Heading | str | Grid) -> str:
        if isinstance(part, _Heading):
            return f"{'#' * (part.level + 1)} {part.text}"
        return part if isinstance(part, str) else markdown(part.head, part.lines)

    return "\n\n".join(map(shown, _parts(study, filled, facts))) + "\n"


def as_text(study: Study, filled: Filled, facts: Mapping[str, Any], width: int) -> str:
    """Returns what as_markdown() has, as tables and paragraphs of at most `width` columns."""

    def shown(part: _Heading | str | Grid) -> str:
        if isinstance(part, _Heading):
            part = f"{'#' * part.level} {part.text}".lstrip()
        if isinstance(part, str):
            return textwrap.fill(part, width)
        return fitted(part.head, part.lines, part.words, width)

    return "\n\n".join(map(shown, _parts(study, filled, facts))) + "\n"


# --- JSON -----------------------------------------------------------------------------------------


def _as_json(study: Study, filled: Filled, facts: Mapping[str, Any]) -> str:
    tables = [
        {
            "name": table.name,
            "title": table.title,
            "about": table.about,
            "heads": heads(table),
            "rows": [
                {
                    "system": row.title,
                    "axes": row.axes,
                    "setting": asdict(row.setting),
                    "figures": {name: each.values for name, each in row.samples.items()},
                    "notes": row.notes,
                    "failed": row.failed,
                    "curves": row.curves,
                }
                for row in rows
            ],
            "markdown": table_markdown(table, rows),
        }
        for table, rows in filled
    ]
    told = {
        "study": study.number,
        "title": study.title,
        "about": study.about,
        "published": study.published,
        "not_comparable": study.not_comparable,
        "machine": dict(facts),
        "tables": tables,
    }
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


# --- HTML -----------------------------------------------------------------------------------------


def _as_html(
    study: Study, filled: Filled, facts: Mapping[str, Any], drawn: Mapping[str, Any]
) -> str:
    title = html.escape(f"Study {study.number}: {study.title}")
    parts = [f"<h1>{title}</h1>", _paragraph(study.about)]
    for table, rows in filled:
        parts += [f"<h2>{html.escape(table.title)}</h2>", _paragraph(table.about)]
        for part in contents(table, rows):
            parts.append(_paragraph(part) if isinstance(part, str) else _html_table(part))
        names = (table.name, f"{table.name}-curves")
        parts += [_svg(drawn[name]) for name in names if name in drawn]
    if study.published:
        parts.append("<h2>What the study printed</h2>")
        parts.append(_html_table(Grid(("what", "figure"), study.published, 2)))
        parts.append(_paragraph(study.not_comparable))
    parts.append(_paragraph(f"Machine: {machine_line(facts)}"))
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head>\n<body>\n{body}\n</body>'
        "</html>\n"
    )


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text.strip())}</p>" if text.strip() else ""


def _html_table(grid: Grid) -> str:
    top = "".join(f"<th>{html.escape(each)}</th>" for each in grid.head)
    lines = "\n".join(f"<tr>{_html_line(grid, line)}</tr>" for line in grid.lines)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>\n{lines}\n</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _html_line(grid: Grid, line: Sequence[str]) -> str:
    short = len(line) < len(grid.head)
    words = len(line) if short else grid.words
    kinds = [' class="word"'] * words + [""] * (len(line) - words)
    if short:
        kinds[-1] += f' colspan="{len(grid.head) - len(line) + 1}"'
    cells = zip(kinds, line, strict=True)
    return "".join(f"<td{kind}>{html.escape(text)}</td>" for kind, text in cells)


def _svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg")
    text = out.getvalue()
    return f"<figure>{text[text.index('<svg') :]}</figure>"
