"""DistributedSampler: whose sample is whose, also where training goes on with other ranks."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_checks import on_ranks
from torch.utils.data import DataLoader

import ciranda.torch as hvd
from ciranda.torch.data import DistributedSampler
from ciranda.torch.data.partition import Ending, done, share

ENDINGS: dict[Ending, dict[str, bool]] = {
    "pad": {},
    "drop": {"drop_last": True},
    "uneven": {"uneven": True},
}
lengths = st.integers(0, 300)
sizes = st.integers(1, 9)


# --- the partition -------------------------------------------------------------------------------


@given(lengths, st.integers(0, 300), sizes, st.sampled_from(get_args(Ending)))
def test_shares_are_what_is_left_each_once(
    length: int, start: int, size: int, ending: Ending
) -> None:
    start = min(start, length)
    shares = [share(length, start, rank, size, ending) for rank in range(size)]
    counts = [len(mine) for mine in shares]
    places = sorted(place for mine in shares for place in mine)
    left = length - start
    if ending == "uneven":
        assert places == list(range(start, length))
        assert counts == sorted(counts, reverse=True) and counts[0] - counts[-1] <= 1
        return
    assert len(set(counts)) == 1, "every rank makes the same number of steps"
    assert counts[0] == (left // size if ending == "drop" else -(-left // size))
    assert places == list(range(start, start + size * counts[0]))


@given(
    lengths, st.lists(st.tuples(sizes, st.integers(0, 40)), max_size=6), sizes,
    st.sampled_from(get_args(Ending)),
)  # fmt: skip
def test_a_job_that_often_goes_on_with_other_ranks_loses_nothing(
    length: int, lives: list[tuple[int, int]], last_size: int, ending: Ending
) -> None:
    """Each life trains on so many samples a rank; the last one on all that is left."""
    seen: list[int] = []
    start = 0
    for size, samples in lives:
        shares = [share(length, start, rank, size, ending) for rank in range(size)]
        trained = min(samples, len(shares[0]))
        seen += [place for mine in shares for place in mine[:trained]]
        start = done(length, start, trained, size)
    seen += [
        place
        for rank in range(last_size)
        for place in share(length, start, rank, last_size, ending)
    ]
    once = [place for place in seen if place < length]  # others are the repeats of "pad"
    assert len(once) == len(set(once)), "none twice"
    if ending == "drop":
        assert length - len(once) < last_size
    else:
        assert sorted(once) == list(range(length)), "none lost"
    if ending == "uneven":
        assert seen == once


# --- the sampler ---------------------------------------------------------------------------------


@given(st.integers(1, 100), sizes, st.integers(0, 5), st.booleans(), st.booleans())
@settings(max_examples=50)
def test_the_order_is_that_of_torchs_sampler(
    length: int, size: int, epoch: int, shuffle: bool, drop_last: bool
) -> None:
    for rank in range(size):
        arguments = (range(length), size, rank, shuffle, 3, drop_last)
        ours, theirs = (
            DistributedSampler(*arguments),
            torch.utils.data.DistributedSampler(*arguments),
        )
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        assert list(ours) == list(theirs)
        assert len(ours) == len(theirs)


def take(samplers: list[DistributedSampler], batch_size: int, steps: int) -> list[int]:
    """What all ranks train on in so many steps; each keeps count."""
    seen: list[int] = []
    for sampler in samplers:
        loader: Any = DataLoader(range(1000), batch_size, sampler=sampler)
        for step, batch in enumerate(loader):
            if step == steps:  # it has been read, but nobody has trained on it
                break
            seen += batch.tolist()
            sampler.advance(len(batch))
    return seen


@given(
    st.integers(1, 60), sizes, sizes, st.integers(1, 5), st.integers(0, 20),
    st.sampled_from(get_args(Ending)),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_training_goes_on_within_an_epoch_on_other_ranks(
    length: int, size: int, next_size: int, batch_size: int, steps: int, ending: Ending
) -> None:
    def ranks(count: int) -> list[DistributedSampler]:
        made = [
            DistributedSampler(range(length), count, rank, seed=7, **ENDINGS[ending])
            for rank in range(count)
        ]
        for sampler in made:
            sampler.set_epoch(2)
        return made

    first = ranks(size)
    seen = take(first, batch_size, steps)
    if ending != "uneven":
        assert all(sampler.state_dict() == first[0].state_dict() for sampler in first)
    second = ranks(next_size)
    for sampler in second:
        sampler.seed = 0  # the state's counts
        sampler.load_state_dict(first[0].state_dict())
        sampler.set_epoch(2)
    seen += take(second, batch_size, 1000)
    if ending == "uneven":
        assert sorted(seen) == list(range(length))
    elif ending == "drop":
        assert len(set(seen)) == len(seen) > length - next_size
    else:
        assert set(seen) == set(range(length))
        assert len(seen) < length + size + next_size
    for sampler in second:
        sampler.set_epoch(3)  # the next epoch is whole again
    assert len(take(second, batch_size, 1000)) >= length - next_size + 1


def test_an_iteration_may_be_repeated_and_a_length_stays() -> None:
    sampler = DistributedSampler(range(10), 2, 1)
    first = list(sampler)
    for _ in first:
        sampler.advance(1)
        assert len(sampler) == 5
    assert list(sampler) == first and sampler.state_dict()["done"] == 0
    assert list(DistributedSampler([], 2, 0)) == []


def test_what_is_wrong_is_one_sentence() -> None:
    with pytest.raises(ValueError, match="rank 2 is not one of 2 ranks; give rank and num_rep"):
        DistributedSampler(range(4), 2, 2)
    with pytest.raises(ValueError, match="drop_last leaves samples out and uneven keeps all"):
        DistributedSampler(range(4), 2, 0, drop_last=True, uneven=True)
    state = DistributedSampler(range(4), 2, 0).state_dict()
    with pytest.raises(ValueError, match="the state belongs to 4 samples, the data set has 5; "):
        DistributedSampler(range(5), 2, 0).load_state_dict(state)


@on_ranks(3)
def test_ranks_find_their_own_share() -> None:
    shares = hvd.allgather_object(list(DistributedSampler(range(10), uneven=True)))
    assert [len(share) for share in shares] == [4, 3, 3]
    assert sorted(itertools.chain(*shares)) == list(range(10))
    torch.set_default_device("meta")  # as "cuda" would be
    assert list(DistributedSampler(range(10), uneven=True)) == shares[hvd.rank()]
    torch.set_default_device(None)


@on_ranks(2)
def test_ranks_with_fewer_batches_join_and_get_what_the_last_one_has() -> None:
    """As docs/training.md says: 7 samples, one a step, so rank 0 makes a step more."""
    sampler = DistributedSampler(range(7), uneven=True)
    for shared_step in (False, "host"):
        model = torch.nn.Linear(1, 1)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(
            optimizer,
            model.named_parameters(),
            shared_step=shared_step,  # type: ignore[arg-type]
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        schedule = hvd.schedules.warmup(optimizer, steps=12)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            for sample in sampler:
                optimizer.zero_grad()
                model(torch.tensor([float(sample)])).sum().backward()
                optimizer.step()
                schedule.step()
            last = hvd.join()
            hvd.broadcast_parameters(model.state_dict(), root_rank=last)
            hvd.broadcast_optimizer_state(optimizer, root_rank=last)
            state = hvd.broadcast_object(schedule.state_dict(), root_rank=last)
            schedule.load_state_dict(state)
        found = [model.weight.item(), schedule.get_last_lr(), schedule.last_epoch]
        assert hvd.allgather_object(found) == [found, found]
        assert schedule.last_epoch == 12 and found[1] == [pytest.approx(0.1)]
