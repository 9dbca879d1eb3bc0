"""metrics.average over ranks: weights, dicts, what differs between ranks."""

from __future__ import annotations

import math

import pytest
import torch
from backends import over_backends_of_the_cpu
from rank_checks import on_ranks

import ciranda.torch as hvd
from ciranda.errors import MismatchError, NotInitializedError
from ciranda.torch import metrics

pytestmark = over_backends_of_the_cpu


def by_rank() -> list[int]:
    return list(range(hvd.size()))


@on_ranks(1, 3)
def test_a_number_becomes_the_mean() -> None:
    mean = sum(by_rank()) / hvd.size()
    found = metrics.average(hvd.rank())
    assert isinstance(found, float) and found == pytest.approx(mean)
    assert metrics.average(torch.tensor([[hvd.rank()]])) == pytest.approx(mean)
    assert metrics.average(torch.tensor(hvd.rank() == 0)) == pytest.approx(1 / hvd.size())


@on_ranks(1, 3)
def test_all_of_a_dict_go_together_and_keep_their_order() -> None:
    rank = hvd.rank()
    before = hvd.stats()["operations"]
    found = metrics.average({"loss": torch.tensor(float(rank)), "accuracy": 100 - rank, "ü": 0.1})
    assert hvd.stats()["operations"] - before == 1
    assert list(found) == ["loss", "accuracy", "ü"]
    mean = sum(by_rank()) / hvd.size()
    assert found == {
        "loss": pytest.approx(mean),
        "accuracy": pytest.approx(100 - mean),
        "ü": pytest.approx(0.1, abs=1e-16),
    }
    assert metrics.average({}) == {}


@on_ranks(3)
def test_a_smaller_batch_counts_less_and_an_empty_one_not_at_all() -> None:
    value, count = [(1.0, 30), (4.0, 10), (math.nan, 0)][hvd.rank()]
    assert metrics.average(value, count) == 1.75
    assert metrics.average({"a": value, "b": 2 * value}, count=count) == {"a": 1.75, "b": 3.5}
    with pytest.raises(ValueError, match="count is 0 on every rank; there is nothing to average"):
        metrics.average(1.0, 0)


@on_ranks(3)
def test_every_rank_gets_the_same_bits() -> None:
    values = {str(number): math.sin(number + hvd.rank()) for number in range(50)}
    found = metrics.average(values, count=0.1 + hvd.rank())
    assert hvd.allgather_object(found) == [found] * hvd.size()
    assert math.isnan(metrics.average(math.nan if hvd.rank() == 1 else 1.0))
    assert metrics.average(math.inf if hvd.rank() == 1 else 1.0) == math.inf


@on_ranks(3)
def test_names_that_differ_are_one_error_on_every_rank() -> None:
    for values, sentence in (
        (
            {"loss": 1.0, ("acc" if hvd.rank() == 2 else "accuracy"): 1.0},
            "'accuracy', rank 2 has 'acc'",
        ),
        (
            {"loss": 1.0} if hvd.rank() != 2 else {"loss": 1.0, "top5": 0.0},
            "nothing more, rank 2 has 'top5'",
        ),
    ):
        with pytest.raises(MismatchError) as caught:
            metrics.average(values)
        assert str(caught.value) == (
            f"metrics.average: the ranks differ in names: rank 0 has {sentence}; give the same on "
            "every rank"
        )
    with pytest.raises(MismatchError, match="rank 0 has one number, rank 1 has 'loss'"):
        metrics.average(1.0 if hvd.rank() != 1 else {"loss": 1.0})  # type: ignore[arg-type]
    assert metrics.average(1.0) == 1.0, "the job goes on"


@on_ranks(3)
def test_the_members_of_a_set_average_among_themselves() -> None:
    pair = hvd.add_process_set([0, 2])
    if pair.included():
        assert metrics.average(hvd.rank(), process_set=pair) == 1.0
        with pytest.raises(MismatchError, match="rank 0 has 'a', rank 2 has 'c'"):
            metrics.average({"abc"[hvd.rank()]: 0.0}, process_set=pair)
    hvd.remove_process_set(pair)


@on_ranks(2)
def test_what_is_no_number_is_refused_before_anybody_waits() -> None:
    with pytest.raises(ValueError, match=r"'loss' has shape \(2,\); give one number, such as its"):
        metrics.average({"loss": torch.ones(2)})
    with pytest.raises(ValueError, match="the value must be a number, not 'many'"):
        metrics.average("many")  # type: ignore[arg-type]
    for count in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="count must be a number of at least 0, not"):
            metrics.average(1.0, count)


def test_before_init_it_says_what_is_missing() -> None:
    with pytest.raises(NotInitializedError):
        metrics.average(1.0)
