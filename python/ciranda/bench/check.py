"""Test data that differ by rank and position, and the count of wrong elements in a result.

The data are small whole numbers, so that every dtype holds them and their sums. They repeat after a
prime number of elements, so a chunk at a wrong offset or of a wrong rank does not fit. One pass
compares 64 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ciranda.bench.case import Case

PERIOD = 8191
MOVED_VALUES = 101  # data that are not added: 0 to 100, which int8 and bfloat16 hold
UNTOUCHED = 111  # initial value of a buffer, unlike all data
SUMMED_VALUES = 4  # data that are added: 0 to 3; bfloat16 holds whole numbers up to 256
CROWDED_RANKS = 64  # with more ranks than this only 0 and 1 are added
BLOCK = 1 << 20  # elements compared at a time, which limits the memory it takes


@dataclass(frozen=True)
class Span:
    """A part of a result: its place, the ranks that contribute, and the place in their input."""

    begin: int
    count: int
    ranks: range
    source_begin: int


def spans(case: Case, rank: int, size: int) -> Iterator[Span]:
    """Yields the parts of the result of rank `rank` of `size`."""
    count, everybody = case.count, range(size)
    if case.op == "allreduce":
        yield Span(0, count, everybody, 0)
    elif case.op == "reducescatter":
        yield Span(0, count, everybody, rank * count)
    elif case.op == "broadcast":
        yield Span(0, count, range(1), 0)
    else:
        begin = rank * count if case.op == "alltoall" else 0
        for peer in everybody:
            yield Span(peer * count, count, range(peer, peer + 1), begin)


def _period(case: Case, rank: int, size: int, begin: int = 0) -> torch.Tensor:
    """Returns PERIOD elements of this rank's input, from `begin` on."""
    at = (torch.arange(PERIOD) + begin) % PERIOD
    mixed = at * 2654435761 + (rank + 1) * 668265263
    mixed = (mixed ^ (mixed >> 15)) >> 3
    if case.redop == "prod":
        return mixed % 2 + 1  # products are powers of two
    if case.redop == "avg":
        return mixed % 2 * size  # averages are whole
    if case.redop == "sum":
        return mixed % (SUMMED_VALUES if size <= CROWDED_RANKS else 2)
    return mixed % MOVED_VALUES


def fill(tensor: torch.Tensor, case: Case, rank: int, size: int) -> None:
    """Writes this rank's input into `tensor`, which has one dimension."""
    period = _period(case, rank, size).to(tensor.dtype).to(tensor.device)
    whole = tensor.numel() // PERIOD * PERIOD
    tensor[:whole].view(-1, PERIOD).copy_(period)
    tensor[whole:].copy_(period[: tensor.numel() - whole])


def _expected(case: Case, span: Span, size: int) -> torch.Tensor:
    total = _period(case, span.ranks[0], size, span.source_begin)
    for rank in span.ranks[1:]:
        other = _period(case, rank, size, span.source_begin)
        if case.redop in ("sum", "avg"):
            total = total + other
        elif case.redop == "prod":
            total = total * other
        else:
            total = torch.minimum(total, other) if case.redop == "min" else total.maximum(other)
    return total // size if case.redop == "avg" else total


def _differ(rows: torch.Tensor, period: torch.Tensor, tolerance: float) -> int:
    if tolerance == 0:
        return int((rows != period).sum())
    # A comparison with > would accept NaN, which is wrong too.
    near = (rows.double() - period.double()).abs() <= tolerance
    return int((~near).sum())


def count_wrong(result: torch.Tensor, case: Case, rank: int, size: int) -> int:
    """Returns how many elements of this rank's result are wrong or missing."""
    result = result.reshape(-1)
    wanted = sum(span.count for span in spans(case, rank, size))
    if result.numel() != wanted:
        return max(wanted, result.numel())
    rows_at_once = max(1, BLOCK // PERIOD)
    wrong = 0
    for span in spans(case, rank, size):
        whole_numbers = _expected(case, span, size)
        # Integers wrap as in the libraries. A power of two too large for float16 is inf in both.
        period = whole_numbers.to(result.dtype)
        tolerance = 0.0
        if case.redop == "avg" and result.is_floating_point():
            # A library may multiply by 1/n, which is not exact.
            tolerance = 2 * torch.finfo(result.dtype).eps * float(whole_numbers.max())
        part = result[span.begin : span.begin + span.count]
        whole = span.count // PERIOD * PERIOD
        all_rows = part[:whole].view(-1, PERIOD)
        for first in range(0, len(all_rows), rows_at_once):
            rows = all_rows[first : first + rows_at_once].cpu()
            wrong += _differ(rows, period, tolerance)
        rest = part[whole:].cpu()
        wrong += _differ(rest, period[: rest.numel()], tolerance)
    return wrong
