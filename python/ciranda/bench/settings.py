"""The settings of a run, and checks that fail before it takes minutes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ciranda.bench.case import (
    DTYPE_BYTES,
    IN_PIECES,
    OPS,
    REDOPS,
    Case,
    make_cases,
    parse_bytes,
    parse_names,
    sizes,
)
from ciranda.launch.errors import LaunchError

NONE = "none"


@dataclass(frozen=True)
class Settings:
    ranks: int
    cases: Sequence[Case]
    backends: Sequence[str] | None  # None: all that this build has
    peers: Sequence[str] | None
    rounds: int
    device: str
    hosts: int  # 1, or 2, which are namespaces
    csv: str | None
    json: str | None
    png: str | None
    compare: str | None
    fail_below: float | None


def sides_named(text: str | None, option: str, known: Sequence[str]) -> Sequence[str] | None:
    if text is None or text == "all":
        return None
    return [] if text == NONE else parse_names(text, option, known)


def cases_named(
    op: str, min_bytes: str, max_bytes: str, factor: int, dtype: str, redop: str, ranks: int
) -> list[Case]:
    smallest, largest = parse_bytes(min_bytes, "--min-bytes"), parse_bytes(max_bytes, "--max-bytes")
    if smallest > largest:
        raise LaunchError(f"--min-bytes {min_bytes} is more than --max-bytes {max_bytes}")
    if factor < 2:
        raise LaunchError(f"--factor must be at least 2, not {factor}")
    return make_cases(
        parse_names(op, "--op", OPS),
        parse_names(dtype, "--dtype", list(DTYPE_BYTES)),
        parse_names(redop, "--redop", REDOPS),
        list(sizes(smallest, largest, factor)),
        ranks,
    )


def check_files(settings: Settings) -> None:
    """Raises LaunchError if the folder of an output file is missing, before minutes are spent."""
    for option, path in (
        ("--csv", settings.csv),
        ("--json", settings.json),
        ("--png", settings.png),
    ):
        if path is not None and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
            raise LaunchError(f"{option} {path}: there is no such folder")


def check_memory(settings: Settings, ranks_of_sides: Sequence[int], memory_gib: float) -> None:
    """Raises LaunchError if the buffers do not fit; all sides keep theirs at the same time."""
    largest = max(case.size(settings.ranks) for case in settings.cases)
    buffers = 2 if any(case.op in IN_PIECES for case in settings.cases) else 1
    needed_gib = sum(ranks_of_sides) * buffers * largest / 2**30
    if settings.device == "cpu" and needed_gib > memory_gib:
        raise LaunchError(
            f"{len(ranks_of_sides)} sides would take {needed_gib:.0f} GiB, and this machine has "
            f"{memory_gib:g} GiB; give a smaller --max-bytes, or fewer --backends and --peers"
        )
