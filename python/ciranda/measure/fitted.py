"""Fits tables into the width of a terminal. Pure.

rich cuts numbers that do not fit ("(211.1-230…"). Here a cell is wrapped between words only, and
columns without room make another block, which repeats the rows' names.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest

Row = Sequence[str]
_GAP = "  "


def fitted(head: Row, lines: Sequence[Row], words: int, width: int | None) -> str:
    """Returns the table as text of at most `width` columns, if its longest words allow that.

    `words`: the number of columns that name a row. `width`: None has no limit. A short line ends
    with a reason in place of its figures; it becomes a sentence below the table.
    """
    width = width or sys.maxsize
    whole = [line for line in lines if len(line) == len(head)]
    columns = list(zip(head, *whole, strict=True))
    blocks = [columns[:words]]
    for column in columns[words:]:
        if len(blocks[-1]) > words and _width(map(_least, [*blocks[-1], column])) > width:
            blocks.append(columns[:words])
        blocks[-1].append(column)
    texts = [_side_by_side(block, words, width) for block in blocks] if whole else []
    reasons = [f"{', '.join(line[:-1])}: {line[-1]}" for line in lines if len(line) < len(head)]
    return "\n\n".join([*texts, *(textwrap.fill(each, width) for each in reasons)])


def _least(column: Row) -> int:
    return max((len(word) for cell in column for word in cell.split()), default=1)


def _width(widths: Iterable[int]) -> int:
    return sum(width + len(_GAP) for width in widths) - len(_GAP)


def _side_by_side(columns: Sequence[Row], words: int, width: int) -> str:
    """Widens the columns, from the left, as far as there is room; the first `words` hold words."""
    widths = [_least(column) for column in columns]
    for at, column in enumerate(columns):
        room = max(0, width - _width(widths))
        widths[at] = min(widths[at] + room, max(map(len, column)))
    rows = [
        zip_longest(*map(_wrapped, cells, widths), fillvalue="")
        for cells in zip(*columns, strict=True)
    ]
    rows.insert(1, zip_longest(*(["-" * width] for width in widths)))
    return "\n".join(
        _GAP.join(
            part.ljust(width) if at < words else part.rjust(width)
            for at, (part, width) in enumerate(zip(parts, widths, strict=True))
        ).rstrip()
        for row in rows
        for parts in row
    )


def _wrapped(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width, break_on_hyphens=False)
