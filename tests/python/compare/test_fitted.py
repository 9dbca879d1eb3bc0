"""Tables of a terminal: never wider than it, no number cut, no figure lost."""

from __future__ import annotations

import re

import pytest

from ciranda.measure.fitted import fitted

HEAD = ("network", "system", "seconds an epoch", "images/s", "accuracy, %", "seconds to 85 %")
FIGURES = ("222.7 (211.1-230.4)", "46,253 (45,100-47,900)", "71.8 (70.1-72.2)", "1.2 (1.1-1.9)")
SERVERS = "parameter servers, Downpour SGD [1, 2]"
LINES = [("host", "one process", *FIGURES), ("vpn", SERVERS, *FIGURES)]
LINES.append(("lan", SERVERS, "needs root"))


@pytest.mark.parametrize("width", [50, 80, 120, 300])
def test_a_table_is_never_wider_than_the_terminal_and_has_every_figure(width: int) -> None:
    text = fitted(HEAD, LINES, 2, width)
    assert max(map(len, text.splitlines())) <= width
    for part in " ".join(FIGURES).split():
        assert len(re.findall(rf"(?<!\S){re.escape(part)}(?!\S)", text)) == 2, text
    assert " ".join(text.split()).endswith(f"lan, {SERVERS}: needs root")


def test_a_wide_terminal_has_a_line_for_each_row() -> None:
    assert fitted(("a", "b c"), [("x", "1"), ("yy", "none of it")], 1, 80).splitlines() == [
        "a          b c",
        "--  ----------",
        "x            1",
        "yy  none of it",
    ]


def test_columns_without_room_make_another_block_that_names_its_rows() -> None:
    text = fitted(("system", "one", "two"), [("shm", "1" * 12, "2" * 12)], 1, 30)
    first, second = text.split("\n\n")
    assert first.splitlines()[0].split() == ["system", "one"]
    assert second.splitlines()[-1].split() == ["shm", "2" * 12]
