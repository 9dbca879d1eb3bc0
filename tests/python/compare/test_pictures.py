"""Charts say what was measured: no spread of one round, one colour a system, a title."""

from __future__ import annotations

from typing import Any

import pytest

from ciranda.compare import pictures, system
from ciranda.compare.setting import Setting
from ciranda.compare.study import Table
from ciranda.compare.table import Row
from ciranda.measure.samples import Samples

pytest.importorskip("matplotlib")

CURVE = [[(1.0, 50.0), (2.0, 80.0)]]


def table(name: str, **more: Any) -> Table:
    more = {"plot": "images_per_s", "curves": True, **more}
    return Table(name, f"Title of {name}", [], ["images_per_s"], {}, {"ranks": [1, 2]}, **more)


def row(name: str, *rates: float, ranks: int = 2) -> Row:
    samples = {"images_per_s": Samples(list(rates))}
    return Row(Setting(system=name, ranks=ranks), name, [str(ranks)], samples, [], curves=CURVE)


def bars(figure: Any) -> list[Any]:
    return [bar for axes in figure.axes for bar in axes.containers if hasattr(bar, "patches")]


def test_one_round_has_no_error_bar_and_several_have() -> None:
    rows = [row("one", 5.0), row("shm", 5.0, 7.0, 6.0)]
    once, often = bars(pictures.draw([(table("t"), rows)])["t"])
    assert once.errorbar is None
    (line,) = often.errorbar.lines[2][0].get_segments()
    assert [at for at, _ in line] == [5.0, 7.0]


def test_a_system_has_one_colour_in_every_chart() -> None:
    first = [row("./mine.py", 1.0), row("shm", 1.0, ranks=1), row("shm", 1.0), row("ddp", 1.0)]
    second = [row("ddp", 1.0), row("one", 1.0), row("./mine.py", 1.0), row("./two.py", 1.0)]
    drawn = pictures.draw([(table("a"), first), (table("b"), second)])
    from matplotlib.colors import to_hex

    seen: dict[str, set[str]] = {}
    for name, rows in (("a", first), ("b", second)):
        for each, bar in zip(rows, bars(drawn[name]), strict=True):
            seen.setdefault(each.title, set()).add(to_hex(bar.patches[0].get_facecolor()))
        lines = drawn[f"{name}-curves"].axes[0].get_lines()[: len(rows)]
        for each, line in zip(rows, lines, strict=True):
            seen.setdefault(each.title, set()).add(to_hex(line.get_color()))
    assert {title: len(colours) for title, colours in seen.items()} == dict.fromkeys(seen, 1)
    assert len(set.union(*seen.values())) == len(seen) == 5
    one_rank, two_ranks = drawn["a-curves"].axes[0].get_lines()[1:3]
    assert one_rank.get_linestyle() != two_ranks.get_linestyle()


def test_every_system_of_the_package_has_a_colour() -> None:
    assert set(pictures._COLOURS) == set(system.names())
    assert len(set(pictures._COLOURS.values())) == len(pictures._COLOURS)


def test_a_chart_has_a_title_that_says_how_often_it_was_measured() -> None:
    drawn = pictures.draw([(table("a"), [row("one", 1.0)]), (table("b"), [row("one", 1.0, 2.0)])])
    assert drawn["a"].get_suptitle() == "Title of a\none round"
    assert drawn["b"].get_suptitle().startswith("Title of b\nmedian of 2 rounds")
    assert drawn["a-curves"].get_suptitle().startswith("Title of a\n")
    panels = table("c", panels="ranks", curves=False)
    drawn = pictures.draw([(panels, [row("one", 1.0, ranks=1), row("one", 1.0)])])
    assert [axes.get_title() for axes in drawn["c"].axes] == ["1", "2"]
