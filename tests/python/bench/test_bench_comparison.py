"""When `--compare --fail-below` fails: too slow, by more than the rounds differ, and ours. A check
that fails by noise is switched off; one that never fails is worth nothing."""

from __future__ import annotations

import pytest

from ciranda.bench import comparison
from ciranda.bench.case import Case
from ciranda.bench.record import Record
from ciranda.bench.row import Row, Timing
from ciranda.launch.errors import LaunchError

MACHINE = {"cpu": "one", "cores": 2, "kernel": "6", "python": "3", "torch": "2", "ciranda": "0"}


def make_row(*rounds_us: float, side: str = "shm", own: bool = True, count: int = 1) -> Row:
    timing = Timing(side, own, Case("allreduce", count, "float32", "sum"), 2, count * 4, 0)
    for us in rounds_us:
        timing.add_round([[us / 1e6]])
    return timing.row()


def make_record(*rows: Row, **machine: object) -> Record:
    return Record([], {**MACHINE, **machine}, 2, "cpu", list(rows))


def failed(base: Row, new: Row) -> bool:
    return bool(comparison.compare([base], [new]).failed(0.9))


def test_a_row_that_is_slower_in_every_round_fails() -> None:
    assert failed(make_row(10, 11, 12), make_row(14, 15, 16))


def test_a_row_within_the_limit_passes_even_if_rounds_are_apart() -> None:
    assert not failed(make_row(10, 10, 10), make_row(10.5, 10.5, 10.5))


def test_a_row_whose_rounds_overlap_the_bases_passes() -> None:
    assert not failed(make_row(10, 10, 15), make_row(14, 20, 20))


def test_a_faster_row_passes() -> None:
    assert not failed(make_row(10, 10, 10), make_row(5, 5, 5))


def test_a_peer_that_is_slower_does_not_fail() -> None:
    base, new = make_row(10, side="mpi", own=False), make_row(20, side="mpi", own=False)
    assert not failed(base, new)
    assert "not ours" in comparison.comparison_table(comparison.compare([base], [new]).pairs, 0.9)


def test_the_ratio_is_of_speeds_with_the_spread_of_both() -> None:
    (pair,) = comparison.compare([make_row(10, 12, 14)], [make_row(20, 24, 28)]).pairs
    assert pair.ratio == pytest.approx(0.5)
    assert (pair.low, pair.high) == (pytest.approx(10 / 28), pytest.approx(14 / 20))
    assert "0.50 (0.36-0.70)" in comparison.comparison_table([pair], None)


def test_the_sentence_of_a_failure_names_the_row_and_both_times() -> None:
    (pair,) = comparison.compare([make_row(10)], [make_row(20)]).pairs
    assert comparison.failure(pair, 0.9).startswith(
        "shm allreduce 4 B float32 sum: 0.50 of the base's speed, below 0.9: it took 10.00 us and "
        "takes 20.00"
    )


def test_rows_of_one_side_only_are_named() -> None:
    base, new = make_record(make_row(1, count=1)), make_record(make_row(1, count=2))
    found = comparison.compare(base.rows, new.rows)
    text = comparison.report(base, new, found, "base.json", None)
    assert "Only in the base: shm allreduce 4 B float32 sum" in text
    assert "Only in this run: shm allreduce 8 B float32 sum" in text


def test_another_machine_is_said_and_other_versions_too() -> None:
    other = make_record(cpu="another", torch="1")
    first, second = comparison.differences(other, make_record())
    assert first == (
        "The base was measured on another machine: cpu another there and one here; the ratios say "
        "little."
    )
    assert second == "The versions differ: torch 1 there and 2 here."
    assert comparison.differences(make_record(), make_record()) == []


def test_a_base_with_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(LaunchError, match="measured with -np 2, and this run has 4; give -np 2"):
        comparison.check_comparable(make_record(), "base.json", 4, "cpu", 1)
