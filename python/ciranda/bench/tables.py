"""Printed text: a table for each side in nccl-tests' layout, and one of all sides. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ciranda.bench.commands import MEMCPY
from ciranda.bench.row import Row

COLUMNS = 100  # width of a terminal
HEAD = ("size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong", "p50", "p95", "p99")
UNITS = ("(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(us)")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Formats columns flush right, with one space between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        " ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def show_us(us: float) -> str:
    digits = 2 if us < 100 else 1 if us < 10_000 else 0
    return f"{us:.{digits}f}"


def _line(row: Row) -> list[str]:
    return [
        str(row.size),
        str(row.count),
        row.dtype,
        row.redop,
        show_us(row.time_us),
        f"{row.algbw_gbs:.2f}",
        f"{row.busbw_gbs:.2f}",
        str(row.wrong),
        show_us(row.p50_us),
        show_us(row.p95_us),
        show_us(row.p99_us),
    ]


def side_table(rows: Sequence[Row]) -> str:
    """Formats the rows of one side and one collective."""
    return table([HEAD, UNITS, *(_line(row) for row in rows)])


def by_case(rows: Sequence[Row]) -> list[dict[str, Row]]:
    """Returns, for each case in order, its rows by side."""
    cases: dict[Any, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(row.key[1:], {})[row.side] = row
    return list(cases.values())


def best_peer(of_case: Mapping[str, Row]) -> Row | None:
    """Returns the fastest peer; memcpy is no collective, and so no peer."""
    peers = [row for row in of_case.values() if not row.own and row.side != MEMCPY]
    return min(peers, key=lambda row: row.time_us, default=None)


def _over_peer(of_case: Mapping[str, Row], own: str) -> str:
    peer = best_peer(of_case)
    if peer is None or own not in of_case:
        return "-"
    speed = peer.rounds_us.over(of_case[own].rounds_us)
    return f"{speed.show()} {peer.side}"


def summary_table(rows: Sequence[Row], sides: Sequence[str]) -> str:
    """Formats one collective: a line for each size, a column for each side.

    The last column compares the first of ciranda's backends with the best peer, round by round.
    """
    own = next((side for side in sides if any(row.own and row.side == side for row in rows)), None)
    compared = own is not None and any(best_peer(each) for each in by_case(rows))
    head = ["size", "type", "redop", *sides]
    head += [f"{own}'s speed ÷ best peer's"] if compared else []
    lines = [head]
    for of_case in by_case(rows):
        any_row = next(iter(of_case.values()))
        line = [str(any_row.size), any_row.dtype, any_row.redop]
        line += [show_us(of_case[side].time_us) if side in of_case else "-" for side in sides]
        line += [_over_peer(of_case, own)] if own is not None and compared else []
        lines.append(line)
    return table(lines)


def report(rows: Sequence[Row], titles: Mapping[str, str]) -> str:
    """Formats all tables; `titles` has a heading for each side."""
    sections = []
    for op in dict.fromkeys(row.op for row in rows):
        of_op = [row for row in rows if row.op == op]
        # The order of the titles, because the first row of a side may belong to a later case.
        sides = [side for side in titles if any(row.side == side for row in of_op)]
        for side in sides:
            of_side = [row for row in of_op if row.side == side]
            sections.append(f"# {op}: {titles[side]}\n{side_table(of_side)}")
        sections.append(f"# {op}: time of each side (us)\n{summary_table(of_op, sides)}")
    return "\n\n".join(sections)


def note(text: str) -> str:
    """Formats a remark between tables."""
    return textwrap.fill(
        text, COLUMNS, initial_indent="# ", subsequent_indent="#   ", break_long_words=False
    )


def machine_lines(machine: Mapping[str, Any], ranks: int, device: str, hosts: int = 1) -> list[str]:
    """Returns lines about the machine, which a reader has to know first."""
    cores = machine["cores"]
    lines = [
        f"{machine['cpu']}, {cores} cores, {machine['memory_gib']} GiB, Linux "
        f"{machine['kernel']}, load {machine['load_average']}, {machine['utc']} UTC",
        f"ciranda {machine['ciranda']}, torch {machine['torch']}, Python {machine['python']}; "
        f"{ranks} ranks on {'one host' if hosts == 1 else 'two hosts'}, {device}",
    ]
    if hosts > 1:
        lines.append(
            "The hosts are network namespaces of this machine, which share its cores and memory."
        )
    elif device == "cpu":
        lines.append("One host: busbw is the bandwidth of its memory, and of no network.")
    if ranks > cores:
        lines.append(
            f"Warning: {ranks} ranks share {cores} cores; times are those of waiting for a core."
        )
    if machine["load_average"] > cores / 2:
        lines.append(
            f"Warning: the load is {machine['load_average']} on {cores} cores; others are using "
            "the machine, and times will be too long."
        )
    return lines
