"""The numbers of a job's processes. Pure.

A rank has its rank, server k has ~k, and the coordinator and the evaluator have fixed numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

EVALUATOR = -1_000_000
COORDINATOR = 1_000_000
_NAMES = {EVALUATOR: "evaluator", COORDINATOR: "coordinator"}


def server_number(server: int) -> int:
    """Returns the number of parameter server `server` among a job's processes."""
    return ~server


def is_rank(number: int) -> bool:
    return 0 <= number < COORDINATOR


def trains(number: int) -> bool:
    """Returns true for a rank or the coordinator. Servers run as long as one of these does."""
    return number >= 0


def is_server(number: int) -> bool:
    return EVALUATOR < number < 0


def name_of(number: int) -> str:
    """Returns `rank 3`, `server 1`, `coordinator` or `evaluator`."""
    if number in _NAMES:
        return _NAMES[number]
    return f"server {~number}" if is_server(number) else f"rank {number}"


def label_of(number: int) -> str:
    """Returns the label before each line of a process's output."""
    if number in _NAMES:
        return _NAMES[number][0]
    return f"s{~number}" if is_server(number) else str(number)


def names_of(numbers: Iterable[int]) -> str:
    """Returns words such as `rank 3`, `ranks 0-2, 5` or `ranks 0-2, 5 and server 1`."""
    numbers = list(numbers)
    ranks = [number for number in numbers if is_rank(number)]
    servers = sorted(~number for number in numbers if is_server(number))
    kinds = (("rank", ranks), ("server", servers))
    parts = [_listed(kind, of_kind) for kind, of_kind in kinds if of_kind]
    return " and ".join([*parts, *(name for each, name in _NAMES.items() if each in numbers)])


def _listed(kind: str, numbers: Sequence[int]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    parts = []
    for first, last in spans:
        if last - first > 1:
            parts.append(f"{first}-{last}")
        else:
            parts += [str(number) for number in range(first, last + 1)]
    return f"{kind if len(numbers) == 1 else kind + 's'} " + ", ".join(parts)
