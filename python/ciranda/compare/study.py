"""Reads a study file and derives its settings. Pure, except that it reads the file."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ciranda.compare.figures import FIGURES
from ciranda.compare.setting import FIELDS, Setting, setting_of
from ciranda.compare.system import System

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).with_name("studies")
MODES = ("quick", "full")


@dataclass(frozen=True)
class Request:
    """The request of the command line."""

    mode: str  # "quick", "full"
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # replaces the study's
    systems: Sequence[str] = ()
    tables: Sequence[str] = ()
    rounds: int | None = None


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    systems: Sequence[str]
    figures: Sequence[str]
    setting: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # overrides a cell, by system
    rounds: int = 3
    plot: str = ""  # name of a figure
    panels: str = ""  # axis of the plot; each of its values has a panel
    curves: bool = False  # accuracy against time
    about: str = ""

    def axes(self) -> list[str]:
        return list(self.grid)

    def settings(self, systems: Mapping[str, System]) -> list[Setting]:
        """Returns one setting for each row; the systems of a cell follow each other."""
        rows: dict[str, Setting] = {}
        for values in itertools.product(*self.grid.values()):
            cell = {**self.setting, **dict(zip(self.grid, values, strict=True))}
            for name in self.systems:
                told = {**cell, **self.of.get(name, {}), "system": name}
                told |= {} if systems[name].processes.servers else {"servers": 1}
                setting = setting_of(told, f"table {self.name}")
                if systems[name].runs(setting):
                    rows.setdefault(setting.key(), setting)
        return list(rows.values())


@dataclass(frozen=True)
class Study:
    number: str
    words: Sequence[str]
    title: str
    about: str
    tables: Sequence[Table]
    published: Sequence[tuple[str, str]]  # description, and its figure
    not_comparable: str


def paths() -> dict[str, Path]:
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def find(wanted: str) -> Path:
    """Returns the file of a study, which is given by number, by word or by path.

    Raises ValueError if there is none.
    """
    if wanted.endswith(".toml"):
        return Path(wanted)
    known = paths()
    for number, path in known.items():
        if wanted == number or wanted in _read(path).get("words", []):
            return path
    words = "; ".join(f"{n} ({', '.join(_read(p)['words'])})" for n, p in known.items())
    raise ValueError(f"there is no study {wanted!r}; there are {words}")


def load(path: Path, request: Request) -> Study:
    """Returns the study with the request applied; ValueError explains a mistake in either."""
    told = _read(path)
    try:
        tables = [_table(each, request) for each in told["tables"]]
        study = Study(
            number=told["number"],
            words=told["words"],
            title=told["title"],
            about=told.get("about", ""),
            tables=tables,
            published=[(row["what"], row["figure"]) for row in told.get("published", [])],
            not_comparable=told.get("not_comparable", ""),
        )
    except KeyError as missing:
        raise ValueError(f"{path}: {missing} is missing") from None
    unknown = set(request.tables) - {table.name for table in tables}
    if unknown:
        there = ", ".join(table.name for table in tables)
        raise ValueError(f"--tables {', '.join(sorted(unknown))}: the study has {there}")
    chosen = [table for table in tables if not request.tables or table.name in request.tables]
    return Study(**{**study.__dict__, "tables": chosen})


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from error


def _table(told: Mapping[str, Any], request: Request) -> Table:
    """Returns the table with the changes of the mode, then those of the request."""
    changed = told.get(request.mode, {})
    setting = {**told.get("setting", {}), **changed.get("setting", {})}
    grid = {**told.get("grid", {}), **changed.get("grid", {})}
    grid = {name: values for name, values in grid.items() if name not in changed.get("setting", {})}
    for name, values in request.grid.items():
        setting.pop(name, None)
        grid[name] = list(values)
    systems = changed.get("systems", told["systems"])
    plot, panels = told.get("plot", ""), told.get("panels", "")
    named: list[tuple[str, Collection[str]]] = [(each, FIGURES) for each in told["figures"]]
    named += [(plot, told["figures"])] if plot else []
    named += [(panels, FIELDS)] if panels else []
    for name, known in named:
        if name not in known:
            there = ", ".join(known)
            raise ValueError(f"table {told['name']}: there is no {name!r}; there are {there}")
    return Table(
        name=told["name"],
        title=told["title"],
        systems=list(request.systems) or systems,
        figures=told["figures"],
        setting=setting,
        grid=grid,
        of=told.get("of", {}),
        rounds=request.rounds or changed.get("rounds", told.get("rounds", 3)),
        plot=plot,
        panels=panels,
        curves=told.get("curves", False),
        about=told.get("about", ""),
    )
