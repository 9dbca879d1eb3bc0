"""Elastic classes without an elastic job: breaks when a state is not restored as it was committed,
when ranks differ after sync() or after a block that some were led out of, or when the sampler deals
a sample twice."""

from __future__ import annotations

import copy
import itertools
import sys
from collections import Counter, OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bits import bits
from rank_checks import on_ranks

import ciranda.torch as hvd
from ciranda.errors import (
    HostsUpdatedInterrupt,
    InvalidArgumentError,
    RankLostError,
    UnsupportedError,
)
from ciranda.torch import elastic
from ciranda.torch.elastic import comparison, handlers
from ciranda.torch.elastic.horovod_state import sync_from
from ciranda.torch.elastic.membership import membership


def trained(rank: int, steps: int = 2) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    train(model, optimizer, steps)
    return model, optimizer


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()


@on_ranks(1)
def test_a_state_is_restored_as_it_was_committed() -> None:
    model, optimizer = trained(0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    state = elastic.TorchState(model, optimizer, scheduler=scheduler, seen=OrderedDict(a=[1]))
    with pytest.raises(InvalidArgumentError, match="nothing is kept yet"):
        state.restore()
    for _ in range(2):  # the second commit goes into the memory of the first
        state.commit()
        committed = bits(model, optimizer, scheduler)
        for _ in range(2):  # the first restore() must not give away what it restores
            train(model, optimizer, 1)
            scheduler.step()
            state.seen["a"].append(2)
            assert bits(model, optimizer, scheduler) != committed
            state.restore()
            assert bits(model, optimizer, scheduler) == committed
            assert state.seen == OrderedDict(a=[1]) and type(state.seen) is OrderedDict
        train(model, optimizer, 1)


@on_ranks(2)
def test_sync_gives_everything_of_rank_0() -> None:
    model, optimizer = trained(hvd.rank(), steps=3 - hvd.rank())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1 + hvd.rank(), 0.5)
    state = elastic.TorchState(
        model=model, optimizer=optimizer, scheduler=scheduler, batch=20 + hvd.rank()
    )
    state.sync()
    assert state.batch == 20
    wanted = bits(*trained(0, steps=3))
    assert bits(model, optimizer)[0] == wanted[0]
    assert bits(optimizer)[0]["state"] == wanted[1]["state"]
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert scheduler.step_size == 1
    synced = bits(model, optimizer)
    train(model, optimizer, 1)
    state.batch = 0
    state.restore()
    assert (bits(model, optimizer), state.batch) == (synced, 20)


@on_ranks(2)
def test_sync_can_give_the_state_of_another_rank() -> None:
    model, optimizer = trained(hvd.rank())
    state = elastic.TorchState(model, optimizer, batch=hvd.rank())
    state.sync(1)
    assert state.batch == 1
    assert bits(model, optimizer) == bits(*trained(1))


@on_ranks(1)
def test_a_registered_object_can_be_replaced() -> None:
    model, optimizer = trained(0)
    state = elastic.TorchState(model, optimizer)
    assert (state.model, state.optimizer) == (model, optimizer)
    state.model, state.optimizer = trained(1)
    state.commit()
    committed = bits(state.model, state.optimizer)
    train(state.model, state.optimizer, 1)
    state.restore()
    assert bits(state.model, state.optimizer) == committed
    assert bits(model) == bits(trained(0)[0])


@on_ranks(1)
def test_a_program_of_horovods_may_call_a_value_step() -> None:
    counting = elastic.TorchState(trained(0)[0])
    assert counting.step == 0
    counting.commit()
    assert counting.step == 1
    state = elastic.TorchState(trained(0)[0], step=7)
    state.commit()
    state.step += 1
    state.restore()
    assert state.step == 7
    with pytest.raises(InvalidArgumentError, match="'commit' cannot be the name of a value"):
        elastic.TorchState(commit=1)
    with pytest.raises(InvalidArgumentError, match="'progress' cannot be the name of a value"):
        elastic.TorchState(progress=1)
    assert not hasattr(state, "other")


class Thing:
    def __init__(self) -> None:
        self.number = 0


class ThingHandler(handlers.StateHandler):
    def save(self) -> None:
        self.saved = self.value.number

    def restore(self) -> None:
        self.value.number = self.saved

    def sync(self) -> None:
        self.value.number = hvd.broadcast_object(self.value.number)


@on_ranks(2)
def test_a_handler_keeps_what_only_the_program_knows() -> None:
    before = handlers.get_handler_registry()
    handlers.set_handler_registry([*before, (Thing, ThingHandler)])
    try:
        thing = Thing()
        state = elastic.TorchState(thing=thing, model=trained(0)[0])
    finally:
        handlers.set_handler_registry(before)
    thing.number = 5 + hvd.rank()
    state.sync()
    assert state.thing is thing and thing.number == 5
    thing.number = 6
    state.restore()
    assert thing.number == 5
    state.thing = Thing()
    state.restore()
    assert state.thing.number == 0
    with pytest.raises(UnsupportedError, match="rank 0 has just joined, and ThingHandler"):
        state.sync(1)
    hvd.barrier()


@on_ranks(2)
def test_an_object_state_has_values() -> None:
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, epoch=hvd.rank(), seen=[])
    state.sync()
    assert state.epoch == 0
    state.seen.append(1)
    state.commit()
    state.epoch, state.seen = 3, [2]
    state.restore()
    assert (state.epoch, state.seen) == (0, [1])
    state.epoch = 7 + hvd.rank()
    sync_from(state, 1)
    assert state.epoch == 8


class Counted(elastic.State):
    """A state as a program for Horovod writes it."""

    def __init__(self) -> None:
        super().__init__(hvd.broadcast_object, hvd.rank)
        self.count = self.saved = 10 * hvd.rank() + 1
        self.resets = 0

    def save(self) -> None:
        self.saved = self.count

    def restore(self) -> None:
        self.count = self.saved

    def sync(self) -> None:
        self.count = self._bcast_object(self.count)

    def reset(self) -> None:
        self.resets += 1


@on_ranks(2)
def test_a_state_of_the_program_runs() -> None:
    @elastic.run
    def count(state: Counted, to: int, *, by: int) -> int:
        """Counts."""
        while state.count < to:
            state.count += by
            state.commit()
        return state.count

    assert (count.__name__, count.__doc__) == ("count", "Counts.")
    state = Counted()
    assert count(state, 5, by=2) == 5
    assert (state.saved, state.resets) == (5, 0)


@on_ranks(2)
def test_run_begins_with_the_state_of_rank_0() -> None:
    model, optimizer = trained(hvd.rank())
    state = elastic.TorchState(model, optimizer, epoch=3 + hvd.rank())

    @elastic.run
    def begin(state: Any) -> list[Any]:
        return [state.epoch, bits(model, optimizer)]

    assert begin(state) == [3, bits(*trained(0))]


@on_ranks(2)
def test_an_interrupt_of_the_program_calls_the_function_again() -> None:
    state = elastic.ObjectState(calls=0, done=0)
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @elastic.run
    def interrupted(state: Any) -> None:
        state.calls += 1
        if state.calls < 3:
            state.done += 1
            raise HostsUpdatedInterrupt(False)

    interrupted(state)
    assert (state.calls, state.done, resets) == (3, 2, [2, 2])


@on_ranks(2)
def test_an_error_that_is_no_loss_is_the_programs() -> None:
    @elastic.run
    def differ(state: Any) -> None:
        hvd.allreduce(torch.ones(1 + hvd.rank()), name="differ")

    with pytest.raises(hvd.HorovodInternalError, match="differ"):
        differ(elastic.ObjectState(epoch=0))


# --- the sampler ---------------------------------------------------------------------------------


def of_all_ranks(indices: list[int]) -> list[int]:
    return list(itertools.chain(*hvd.allgather_object(indices)))


def on_other_ranks(sampler: elastic.ElasticSampler, rank: int, size: int) -> list[int]:
    """What this rank would get if the ranks were others."""
    other = elastic.ElasticSampler(sampler.dataset, sampler.shuffle, sampler.seed)
    other.load_state_dict(sampler.state_dict())
    other.rank, other.num_replicas = rank, size
    other.num_samples = -(-len(other.remaining_indices) // size)
    other.total_size = other.num_samples * size
    return list(other)


@on_ranks(2)
def test_the_sampler_deals_what_is_left() -> None:
    for shuffle in (False, True):
        sampler = elastic.ElasticSampler(range(22), shuffle, seed=3)
        state = elastic.TorchState(sampler=sampler)
        state.sync()
        mine = list(sampler)
        assert len(mine) == len(sampler) == 11
        assert (mine == sorted(mine)) == (not shuffle)
        for batch in range(2):
            sampler.record_batch(batch, 3)
        state.commit()
        sampler.record_batch(2, 3)
        state.restore()
        assert sampler.processed_num == 12
        first = of_all_ranks(mine[:6])
        assert sampler.processed_indices == set(first)
        assert list(sampler) == mine[6:]
        for size in (1, 3, 4):
            shares = [on_other_ranks(sampler, rank, size) for rank in range(size)]
            dealt = list(itertools.chain(*shares))
            times = Counter(dealt)
            assert set(times) == set(range(22)) - set(first)
            assert len(dealt) - len(times) < size
        for batch in range(2, 4):  # the last batch is smaller
            sampler.record_batch(batch, 3)
        sampler.reset()
        assert len(sampler) == 0 and list(sampler) == []
        sampler.set_epoch(1)
        assert len(sampler) == 11
        assert (list(sampler) == mine) == (not shuffle)


@on_ranks(1)
def test_a_rest_smaller_than_the_ranks_gives_each_a_sample() -> None:
    sampler = elastic.ElasticSampler(range(5))
    sampler.record_batch(0, 4)
    last = set(range(5)) - sampler.processed_indices
    assert [set(on_other_ranks(sampler, rank, 4)) for rank in range(4)] == [last] * 4


@on_ranks(2)
def test_samples_counted_by_name_are_united() -> None:
    sampler = elastic.ElasticSampler(range(20))
    state = elastic.TorchState(sampler=sampler)
    state.sync()
    taken = list(sampler)[: 2 + hvd.rank()]
    sampler.record_indices(taken)
    assert sampler.processed_indices == set(taken)
    with pytest.raises(InvalidArgumentError, match="call only one of them"):
        sampler.record_batch(0, 2)
    state.commit()
    everyone = set(of_all_ranks(taken))
    assert sampler.processed_indices == everyone
    sampler.record_indices(set(range(20)) - everyone)
    state.restore()
    assert sampler.processed_indices == everyone
    assert set(of_all_ranks(list(sampler))) == set(range(20)) - everyone
    sampler.set_epoch(1)
    assert sampler.processed_indices == set()
    sampler.record_batch(0, 2)
    with pytest.raises(InvalidArgumentError, match="call only one of them"):
        sampler.record_indices([1])
    state.commit()


# --- Blocks -------------------------------------------------------------------------------------


@on_ranks(2)
def test_a_rank_that_an_error_leads_out_of_a_block_gets_the_rest_of_it() -> None:
    model, optimizer = trained(0)
    average = copy.deepcopy(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    state = elastic.TorchState(model, optimizer, average=average, scheduler=scheduler, seen=0)
    if hvd.rank() == 0:
        train(model, optimizer, 1)
        scheduler.step()
        with torch.no_grad():
            next(average.parameters()).add_(1)
        state.seen = 1
        state.end_block()
        state.seen = 2  # after the block, which rank 1 does itself
    else:
        state.undo_block = lambda: None  # it is in the block
    state.transfer(SimpleNamespace(source=0, behind=[1], newcomers=[]), hvd.rank())
    if hvd.rank() == 1:
        assert (state.seen, scheduler.last_epoch) == (0, 0)  # the block's code may still do it
        state.skip_rest_of_block()
        assert state.seen == 1
    own = [[each.tolist() for each in module.parameters()] for module in (model, average)]
    first, second = hvd.allgather_object([own, *bits(optimizer, scheduler)])
    assert first == second


class LostAtFirst(torch.optim.SGD):
    lost = False

    def step(self, closure: Any = None) -> None:
        if not self.lost:
            self.lost = True
            raise RankLostError("rank 1 is lost")


@on_ranks(2)
def test_a_newcomer_passes_on_what_it_has_not_come_to_yet() -> None:
    state = elastic.TorchState(torch.nn.Linear(2, 1), seen=5 if hvd.rank() == 1 else 0)
    state.transfer(SimpleNamespace(source=1, behind=[], newcomers=[0]), hvd.rank())
    if hvd.rank() == 1:
        state = elastic.TorchState(torch.nn.Linear(2, 1), seen=9)  # of a new process in its place
    state.transfer(SimpleNamespace(source=0, behind=[], newcomers=[1]), hvd.rank())
    state.arrive()
    assert state.seen == 5


@on_ranks(2)
def test_a_rank_that_is_behind_gets_the_state_at_the_end_of_the_pass() -> None:
    state = elastic.TorchState(torch.nn.Linear(2, 1), seen=0)
    if hvd.rank() == 0:
        state.seen = 1
        state.end_call()
    state.transfer(SimpleNamespace(source=0, behind=[1], newcomers=[]), hvd.rank())
    state.skip_last_call()  # as a newcomer does that gets it from rank 1
    assert state.seen == 1


@on_ranks(1)
def test_a_block_is_redone_by_all_although_one_optimizer_has_stepped() -> None:
    model = torch.nn.Linear(3, 2)
    first = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    second = hvd.DistributedOptimizer(LostAtFirst(model.parameters(), lr=1.0))
    state = elastic.TorchState(model, first, second=second)
    loader = torch.utils.data.DataLoader(torch.randn(2, 3), 2)
    begun, done = [], []
    with pytest.MonkeyPatch.context() as patch:
        module = sys.modules["ciranda.torch.elastic.steps"]  # the function has the same name
        patch.setattr(module, "is_loss", lambda _: True)
        patch.setattr(membership, "recover", lambda state, loss, restore: restore())
        for step in elastic.steps(loader, state):
            with step:
                begun.append(step.number)
                first.step()
                second.step()
            done.append(step.done)
    assert (begun, done) == ([0, 0], [False, True])


def test_what_differs_is_named() -> None:
    told = comparison.difference([{"a": "1", "b": "2"}, {"a": "1", "b": "3"}, {"a": "1"}])
    assert told == "ranks 1, 2 have another value of b than rank 0"
    assert comparison.difference([{"a": "1"}] * 3) == ""
    assert comparison.text_of({"a": [1.5, None, print]}) == "{a: [1.5, ?, ?]}"
    tensor = torch.arange(6.0).reshape(2, 3)
    assert comparison.text_of(tensor) == comparison.text_of(tensor.T.contiguous().T)
    assert comparison.text_of(tensor) != comparison.text_of(tensor + 1)
