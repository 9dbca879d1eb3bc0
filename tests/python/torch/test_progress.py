"""progress.tqdm: one bar for all ranks, that no rank waits for."""

from __future__ import annotations

import re
import sys

import pytest
from ranks import run_ranks, values_of

import ciranda.torch as hvd
from ciranda.torch import progress

pytest.importorskip("tqdm")


def uneven_bar() -> list[int]:
    """Each rank has another number of batches, and calls what a bar has."""
    hvd.init()
    batches = progress.tqdm(
        range(10 + hvd.rank()), batch_size=32, unit=" images", desc="epoch 1", mininterval=0
    )
    seen = []
    for batch in batches:
        seen.append(batch)
        batches.set_postfix(loss=0.5)
    with progress.tqdm(total=4) as by_hand:
        by_hand.update(2)
    return seen


def test_rank_0_draws_the_samples_of_all_ranks() -> None:
    results = run_ranks(uneven_bar, 2, env={"COLUMNS": "80"})
    assert values_of(results) == [list(range(10)), list(range(11))]
    assert results[1].stderr == ""
    drawn = results[0].stderr.splitlines()  # each time anew
    bar = [line for line in drawn if line.startswith("epoch 1:")]
    assert re.fullmatch(
        r"epoch 1: 100%\|.+\| 640/640 \[00:00<00:00, \d+\.\d\d images/s, loss=0\.5\]", bar[-1]
    )
    assert all(len(line) < 80 for line in drawn)
    assert "| 4/8 [" in drawn[-1]


def long_bar() -> None:
    hvd.init()
    for _ in progress.tqdm(range(3000), batch_size=2):
        pass


def test_a_log_is_not_filled_with_bars() -> None:
    (result,) = run_ranks(long_bar, 1)
    values_of([result])
    drawn = [line for line in result.stderr.splitlines() if line]
    assert len(drawn) <= 2, "at the beginning and at the end"
    assert "| 6000/6000 [" in result.stderr


def no_tqdm() -> None:
    hvd.init()
    sys.modules["tqdm"] = None  # type: ignore[assignment] # as if it were not installed
    with pytest.raises(ImportError, match=r"tqdm is not installed; `pip install tqdm`, or iterate"):
        progress.tqdm([])


def wrong_use() -> None:
    with pytest.raises(ValueError, match="init"):
        progress.tqdm([])
    hvd.init()
    with pytest.raises(ValueError, match=r"progress\.tqdm: batch_size must be at least 1, not 0"):
        progress.tqdm([], batch_size=0)


def test_what_is_wrong_is_one_sentence() -> None:
    for check in (no_tqdm, wrong_use):
        values_of(run_ranks(check, 1))
