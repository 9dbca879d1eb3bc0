"""Horovod's process sets: ranks that run operations among themselves."""

from __future__ import annotations

import inspect
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_checks import on_ranks
from ranks import run_ranks, values_of
from torch import nn

import ciranda.torch as hvd
from ciranda.errors import MismatchError


def everything_over_a_set() -> dict[str, Any]:
    """On ranks 1 and 3 of 4."""
    hvd.init()
    odd = hvd.add_process_set([3, 1])
    assert odd.ranks == [1, 3] and odd.size() == 2
    if not odd.included():
        return {}
    rank = hvd.rank()
    own = torch.tensor([float(rank)])
    wanted = torch.tensor([float(rank)], requires_grad=True)
    (hvd.allreduce(wanted, op=hvd.Sum, process_set=odd) * rank).sum().backward()
    gathered = torch.full((odd.rank() + 1,), float(rank), requires_grad=True)
    (hvd.allgather(gathered, process_set=odd) * torch.arange(1.0, 4.0)).sum().backward()
    own_part = torch.tensor([float(rank)], requires_grad=True)
    (hvd.broadcast(own_part, root_rank=3, process_set=odd) * rank).sum().backward()
    parts = torch.ones(3, requires_grad=True)
    (hvd.reducescatter(parts, op=hvd.Sum, process_set=odd) * rank).sum().backward()
    rows = torch.ones(2, requires_grad=True)
    (hvd.alltoall(rows, process_set=odd) * rank).sum().backward()
    sent, received = hvd.alltoall(torch.tensor([1.0, 2.0, 3.0]) * rank, [1, 2], process_set=odd)
    hvd.barrier(process_set=odd)
    return {
        "sum": hvd.allreduce(own, op=hvd.Sum, process_set=odd).item(),
        "average": hvd.allreduce(own, process_set=odd).item(),
        "in place": hvd.allreduce_(own.clone(), op=hvd.Max, process_set=odd).item(),
        "grouped": [t.item() for t in hvd.grouped_allreduce([own, own * 2], process_set=odd)],
        "gradient of sum": wanted.grad.item(),
        "gathered": hvd.allgather(gathered.detach(), process_set=odd).tolist(),
        "gradient of gather": gathered.grad.tolist(),
        "gradient of broadcast": own_part.grad.item(),
        "gradient of scatter": parts.grad.tolist(),
        "gradient of all to all": rows.grad.tolist(),
        "from the root": hvd.broadcast(own, root_rank=3, process_set=odd).item(),
        "all to all": [sent.tolist(), received.tolist()],
        "scattered": hvd.reducescatter(
            torch.tensor([1.0, 2.0, 3.0]), op=hvd.Sum, process_set=odd
        ).tolist(),
        "start": started_over(odd),
        "object": hvd.broadcast_object({"rank": rank}, root_rank=3, process_set=odd),
        "objects": hvd.allgather_object(rank, process_set=odd),
    }


def started_over(process_set: hvd.ProcessSet) -> list[Any]:
    """What rank 3 gives the members: weights, state and hyper-parameters."""
    rank = hvd.rank()
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5 * rank, momentum=0.9)
    if rank == 3:
        model(torch.full((1, 1), 4.0)).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=3, process_set=process_set)
    hvd.broadcast_optimizer_state(optimizer, root_rank=3, process_set=process_set)
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    return [model.weight.item(), momentum.item(), optimizer.param_groups[0]["lr"]]


def test_every_collective_runs_among_the_members_alone() -> None:
    outside, one, outside_too, three = values_of(run_ranks(everything_over_a_set, 4))
    assert outside == outside_too == {}
    for values, rank in ((one, 1), (three, 3)):
        assert values["sum"] == 4 and values["average"] == 2 and values["in place"] == 3
        assert values["grouped"] == [2, 4]
        assert values["gradient of sum"] == 4  # the sum of both gradients
        assert values["gathered"] == [1, 3, 3]
        assert values["gradient of gather"] == ([1] if rank == 1 else [2, 3])
        assert values["gradient of broadcast"] == (0 if rank == 1 else 2)  # the average
        assert values["gradient of scatter"] == [2, 2, 6]
        assert values["gradient of all to all"] == [1, 3]
        assert values["from the root"] == 3
        assert values["start"] == [-3, 4, 1.5]  # 3 - 1.5 * 4
        assert values["object"] == {"rank": 3} and values["objects"] == [1, 3]
    assert one["all to all"] == [[1, 3], [1, 1]]
    assert three["all to all"] == [[2, 3, 6, 9], [2, 2]]
    assert one["scattered"] == [2, 4] and three["scattered"] == [6]


def test_whatever_horovod_runs_over_a_set_takes_one() -> None:
    kinds = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]
    names = [*kinds, *(f"{kind}_async" for kind in kinds)]
    names += [f"grouped_{kind}{form}" for kind in kinds[:2] + kinds[4:] for form in ("", "_async")]
    names += ["allreduce_", "allreduce_async_", "grouped_allreduce_", "grouped_allreduce_async_"]
    names += ["broadcast_", "broadcast_async_", "barrier", "broadcast_object", "allgather_object"]
    names += ["broadcast_parameters", "broadcast_optimizer_state", "DistributedOptimizer"]
    for name in names:
        parameter = inspect.signature(getattr(hvd, name)).parameters["process_set"]
        assert parameter.default is hvd.global_process_set, name
    assert "process_set" not in inspect.signature(hvd.join).parameters


def sets_of_all_kinds() -> list[Any]:
    low, high, alone = hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 2]), hvd.ProcessSet([2])
    hvd.init(process_sets=[low, high, alone])
    results: dict[int, float] = {}

    def work(process_set: hvd.ProcessSet) -> None:
        for _ in range(20):
            total = hvd.allreduce(torch.ones(9), name="same", op=hvd.Sum, process_set=process_set)
        results[process_set.process_set_id or 0] = total[0].item()

    mine = [s for s in (high, hvd.global_process_set, low, alone) if s.included()]
    threads = [threading.Thread(target=work, args=[process_set]) for process_set in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [low.process_set_id, high.process_set_id, alone.process_set_id]
    hvd.shutdown()
    gone = [low.process_set_id, high.process_set_id, alone.process_set_id]
    hvd.init(process_sets="dynamic")
    again = hvd.add_process_set(low)
    return [ids, sorted(results.items()), gone, again.process_set_id]


def test_static_overlapping_and_single_sets_work_from_several_threads_at_once() -> None:
    zero, one, two = values_of(run_ranks(sets_of_all_kinds, 3))
    assert zero == [[1, 2, 3], [[0, 3], [1, 2]], [None] * 3, 1]
    assert one == [[1, 2, 3], [[0, 3], [1, 2], [2, 2]], [None] * 3, 1]
    assert two == [[1, 2, 3], [[0, 3], [2, 2], [3, 1]], [None] * 3, 1]


def said(action: Any) -> str:
    try:
        return f"nothing, but {action()}"
    except (ValueError, MismatchError) as error:
        return str(error)


def what_is_refused() -> dict[str, Any]:
    hvd.init()
    first = hvd.add_process_set([0, 1])
    found = {
        "twice": said(lambda: hvd.add_process_set(hvd.ProcessSet([0, 1]))),
        "all": said(lambda: hvd.add_process_set(range(3))),
        "unknown rank": said(lambda: hvd.add_process_set([0, 7])),
        "again": said(lambda: hvd.add_process_set(first)),
        "none": said(lambda: hvd.ProcessSet([])),
        "another on each": said(lambda: hvd.add_process_set([hvd.rank()])),
        "not added": said(lambda: hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0]))),
        "global": hvd.remove_process_set(hvd.global_process_set),
        "never added": hvd.remove_process_set(hvd.ProcessSet([0])),
    }
    if hvd.rank() == 2:
        one = torch.ones(1)
        optimizer = torch.optim.SGD([nn.Parameter(one)], lr=1)
        found["outside"] = [
            said(lambda: hvd.allreduce(one, process_set=first)),
            said(lambda: hvd.broadcast_parameters({"w": one}, 0, process_set=first)),
            said(lambda: hvd.broadcast_optimizer_state(optimizer, 0, process_set=first)),
            said(lambda: hvd.broadcast_object(1, 0, process_set=first)),
            said(lambda: hvd.barrier(process_set=first)),
            said(first.rank),
        ]
    else:
        found["root outside"] = [
            said(lambda: hvd.broadcast(torch.ones(1), 2, process_set=first)),
            said(lambda: hvd.broadcast_parameters({"w": torch.ones(1)}, 2, process_set=first)),
            said(lambda: hvd.broadcast_object(1, 2, process_set=first)),
        ]
    handle = None
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="late", process_set=first)
    found["pending"] = said(lambda: hvd.remove_process_set(first))
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(torch.ones(1), name="late", process_set=first)
    if handle is not None:
        hvd.synchronize(handle)
    found["removed"] = hvd.remove_process_set(first)
    found["after"] = said(lambda: hvd.allreduce(torch.ones(1), process_set=first))
    found["goes on"] = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    return found


def test_what_cannot_be_is_one_sentence_on_every_rank_and_the_job_goes_on() -> None:
    all_found = values_of(run_ranks(what_is_refused, 3))
    for found in all_found:
        assert "unique" in found["twice"] and "unique" in found["all"]
        assert "7" in found["unknown rank"]
        assert "has been added already" in found["again"]
        assert "name at least one rank" in found["none"]
        assert "rank 0 has" in found["another on each"] and "rank 2 has" in found["another on each"]
        assert "call add_process_set() on every rank" in found["not added"]
        assert found["global"] is found["never added"] is False
        assert "late" in found["pending"]
        assert found["removed"] is True
        assert "is not known to the ranks" in found["after"]
        assert found["goes on"] == 3
    for text in all_found[2]["outside"]:
        assert re.search(r"rank 2 is not a member of (process set 1|ProcessSet\()", text)
    for found in all_found[:2]:
        in_engine, parameters, objects = found["root outside"]
        assert "its root rank 2 is not a member; the members are ranks 0, 1" in in_engine
        assert "its root rank 2 is not a member; the members are ranks 0, 1" in parameters
        assert "root_rank 2 is not a rank; ranks are 0 to 1" in objects


@on_ranks(3)
def test_every_call_refuses_who_is_no_member() -> None:
    """At once and in a sentence, while the members wait for nobody."""
    pair = hvd.add_process_set([0, 1])
    own, wanted = torch.ones(2), torch.ones(2, requires_grad=True)
    model = nn.Linear(1, 1)
    among: dict[str, Any] = {"process_set": pair}
    calls = [
        *(lambda t=t: hvd.allreduce(t, **among) for t in (own, wanted)),
        *(lambda t=t: hvd.grouped_allreduce([t, t], **among) for t in (own, wanted)),
        *(lambda t=t: hvd.allgather(t, **among) for t in (own, wanted)),
        *(lambda t=t: hvd.grouped_allgather([t], **among) for t in (own, wanted)),
        *(lambda t=t: hvd.broadcast(t, 0, **among) for t in (own, wanted)),
        *(lambda t=t: hvd.alltoall(t, **among) for t in (own, wanted)),
        *(lambda t=t: hvd.reducescatter(t, **among) for t in (own, wanted)),
        *(lambda t=t: hvd.grouped_reducescatter([t], **among) for t in (own, wanted)),
        lambda: hvd.allreduce_(own, **among),
        lambda: hvd.allreduce_async(own, **among),
        lambda: hvd.allreduce_async_(own, **among),
        lambda: hvd.grouped_allreduce_([own], **among),
        lambda: hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), **among),
        lambda: hvd.allgather_async(own, **among),
        lambda: hvd.broadcast_(own, 0, **among),
        lambda: hvd.broadcast_async(own, 0, **among),
        lambda: hvd.alltoall_async(own, [1, 1], **among),
        lambda: hvd.reducescatter_async(own, **among),
        lambda: hvd.barrier(**among),
        lambda: hvd.gather(own, 0, **among),
        lambda: hvd.scatter(own, 0, **among),
        lambda: hvd.reduce(own, 0, **among),
        lambda: hvd.broadcast_object(1, 0, **among),
        lambda: hvd.allgather_object(1, **among),
        lambda: hvd.broadcast_parameters(model.state_dict(), 0, **among),
        lambda: hvd.broadcast_optimizer_state(
            torch.optim.SGD(model.parameters(), lr=0.1), 0, **among
        ),
        lambda: hvd.SyncBatchNorm(2, **among)(torch.ones(3, 2)),
        pair.rank,
    ]
    if not pair.included():
        for call in calls:
            with pytest.raises(
                ValueError, match=r"rank 2 is not a member of (process set|ProcessSet)"
            ):
                call()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 3
    hvd.remove_process_set(pair)


@on_ranks(3)
def test_removed_sets_leave_no_descriptor() -> None:
    counts = []
    for i in range(200):
        process_set = hvd.add_process_set([0, 2])
        if process_set.included():
            hvd.allreduce(torch.ones(100), process_set=process_set)
        hvd.remove_process_set(process_set)
        if i in (20, 199):
            counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[1] <= counts[0]


def gan() -> list[float]:
    """Ranks 0 and 1 train one model, ranks 2 and 3 another one."""
    left, right = hvd.ProcessSet([0, 1]), hvd.ProcessSet([2, 3])
    hvd.init(process_sets=[left, right])
    mine = left if left.included() else right
    torch.manual_seed(mine.ranks[0])
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(),
        process_set=mine,
    )
    generator = torch.Generator().manual_seed(7)
    for _ in range(5):
        batch = torch.randn(8, 6, generator=generator).chunk(2)[mine.rank()]
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def alone(seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(7)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 6, generator=generator)).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_two_optimizers_over_disjoint_sets_train_as_two_processes() -> None:
    trained = [torch.tensor(values) for values in values_of(run_ranks(gan, 4))]
    for rank, seed in enumerate((0, 0, 2, 2)):
        torch.testing.assert_close(trained[rank], alone(seed), rtol=1e-5, atol=1e-6)


def step_of_sets(sets: list[list[int]], options: dict[str, Any], batches: list[int]) -> list[Any]:
    """Each rank trains a model in each of its sets, one after the other, so many batches in each of
    two epochs. Gives for each set the parameters, and why its step is not shared."""
    process_sets = [hvd.ProcessSet(ranks) for ranks in sets]
    hvd.init(process_sets=process_sets)
    trained: list[Any] = [None] * len(sets)
    models = {}
    for number, process_set in enumerate(process_sets):
        if process_set.included():
            models[number] = model = model_of_set(number)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.Adam(model.parameters(), lr=0.01),
                model.named_parameters(),
                process_set=process_set,
                max_grad_norm=0.5,
                **options,
            )
            trained[number] = optimizer
    for epoch in range(2):
        for step in range(batches[hvd.rank()]):
            for number, model in models.items():
                trained[number].zero_grad()
                batch_loss(model, epoch, step, hvd.rank()).backward()
                trained[number].step()
        hvd.join()
    return [
        None
        if number not in models
        else [
            torch.cat([p.detach().flatten() for p in models[number].parameters()]).tolist(),
            trained[number].why_not_shared(),
            sum(len(entry) for entry in trained[number].state_dict()["state"].values()),
        ]
        for number in range(len(sets))
    ]


def model_of_set(number: int) -> nn.Sequential:
    torch.manual_seed(number)
    return nn.Sequential(nn.Linear(6, 90), nn.Tanh(), nn.Linear(90, 1)).double()


def batch_loss(model: nn.Module, epoch: int, step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * epoch + 10 * step + rank)
    return model(torch.randn(4, 6, generator=generator).double()).square().mean()


def trained_alone(number: int, ranks: list[int], batches: list[int]) -> list[float]:
    model = model_of_set(number)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        for step in range(max(batches[rank] for rank in ranks)):
            optimizer.zero_grad()
            for rank in ranks:
                if step < batches[rank]:
                    (batch_loss(model, epoch, step, rank) / len(ranks)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


@pytest.mark.parametrize(
    ("sets", "batches"),
    [
        ([[0, 1], [2, 3]], [3, 3, 3, 3]),
        ([[0, 2], [1, 3]], [3, 2, 0, 4]),  # with ranks that join
        ([[0, 1, 2], [1, 3]], [2, 2, 2, 2]),  # rank 1 is in both
    ],
    ids=["apart", "with-joined-ranks", "overlapping"],
)
@pytest.mark.parametrize(
    "options", [{"shared_step": "host"}, {"share_parameters": True}], ids=["host", "one-copy"]
)
def test_the_ranks_of_a_set_share_a_step(
    sets: list[list[int]], batches: list[int], options: dict[str, Any]
) -> None:
    by_rank = values_of(run_ranks(step_of_sets, 4, args=(sets, options, batches)))
    for number, ranks in enumerate(sets):
        expected = torch.tensor(trained_alone(number, ranks, batches))
        for rank in range(4):
            assert (by_rank[rank][number] is None) == (rank not in ranks)
            if rank not in ranks:
                continue
            parameters, why, entries = by_rank[rank][number]
            torch.testing.assert_close(torch.tensor(parameters), expected, rtol=1e-6, atol=1e-9)
            assert parameters == by_rank[ranks[0]][number][0]
            assert why == "" and entries == 12


@on_ranks(3)
def test_a_group_of_parameters_is_added_by_the_members_alone() -> None:
    """Rank 2 is no member, and calls nothing."""
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        first, second = (nn.Parameter(torch.zeros(2)) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first], lr=1.0), process_set=pair)
        optimizer.add_param_group({"params": [second]})
        ((first + second) * float(hvd.rank())).sum().backward()
        optimizer.step()
        assert [*first.tolist(), *second.tolist()] == [-0.5] * 4
    hvd.remove_process_set(pair)


@on_ranks(3)
def test_a_search_of_a_set_looks_at_the_losses_of_its_members() -> None:
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        x = nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.LBFGS([x], line_search_fn="strong_wolfe"), process_set=pair
        )

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (x - 2.0 * hvd.rank()).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        torch.testing.assert_close(x.detach(), torch.ones(2))
    hvd.remove_process_set(pair)


def another_set_of_the_same_number() -> float:
    found = torch.zeros(1)
    for ranks in ([0, 1], [1, 2]):
        hvd.init()
        process_set = hvd.add_process_set(ranks)
        assert process_set.process_set_id == 1
        if process_set.included():
            model = nn.Linear(1, 1, bias=False)
            nn.init.zeros_(model.weight)
            optimizer = torch.optim.SGD(model.parameters(), lr=1)
            optimizer = hvd.DistributedOptimizer(optimizer, process_set=process_set)
            model(torch.full((1, 1), 2.0 * process_set.rank())).sum().backward()
            optimizer.step()
            found += model.weight.detach().reshape(1)
        hvd.shutdown()
    return found.item()


def test_optimizers_of_a_later_job_meet_whoever_had_how_many_before() -> None:
    assert values_of(run_ranks(another_set_of_the_same_number, 3)) == [-1, -2, -1]


class Communicator:
    """What init() and ProcessSet use of mpi4py's; starters/test_starters.py has the real one."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks

    def Get_group(self) -> None: ...

    def allgather(self, rank: int) -> list[int]:
        assert rank in self.ranks
        return self.ranks


def init_with_static_sets() -> list[str]:
    first, second, whole = hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 0]), hvd.ProcessSet([0, 1, 2])
    texts = []
    for sets in ([first, second], [hvd.global_process_set], [first, whole], [first, [0, 1]]):
        texts.append(said(lambda sets=sets: hvd.init(process_sets=sets)))
        assert not hvd.is_initialized() and first.process_set_id is None
    mine = hvd.ProcessSet([0, 1 + hvd_rank()])
    texts.append(said(lambda: hvd.init(process_sets=[mine])))
    assert not hvd.is_initialized()
    hvd.init(process_sets=[first])
    hvd.init(process_sets=[whole])  # has no effect
    assert first.process_set_id == 1 and whole.process_set_id is None
    assert hvd.remove_process_set(first) and hvd.add_process_set(second).process_set_id == 2
    found = hvd.ProcessSet(Communicator([2, 0, 1]))
    assert found.ranks == [0, 1, 2] and found.mpi_comm is not None
    assert hvd.global_process_set.ranks == [0, 1, 2] and hvd.global_process_set.included()
    assert hvd.global_process_set.process_set_id == 0 and hvd.global_process_set.size() == 3
    return texts


def hvd_rank() -> int:
    """Before init()."""
    return int(os.environ["CIRANDA_RANK"])


def test_init_refuses_static_sets_that_cannot_be_and_a_later_one_works() -> None:
    for twice, of_all, whole, no_set, different in values_of(run_ranks(init_with_static_sets, 3)):
        assert twice.startswith("init: process_sets has a second set of [0, 1]; process sets must")
        assert of_all.startswith("init: process_sets has a second set of all ranks; process sets")
        assert "process sets must be unique" in whole
        assert no_set == 'init: process_sets must be a list of ProcessSet, or "dynamic"'
        assert "root" not in different and "rank 0 has" in different and "rank 1 has" in different


def places_of(comms: list[Any]) -> list[Any]:
    """init() with a list of ranks for this one, or for a communicator of them `{"mpi": ranks}`."""
    found = []
    for by_rank in comms:
        comm = by_rank[hvd_rank()]
        comm = Communicator(comm["mpi"]) if isinstance(comm, dict) else comm
        environment = dict(os.environ)
        text = said(lambda comm=comm: hvd.init(comm=comm))
        assert dict(os.environ) == environment
        if hvd.is_initialized():
            assert text == "nothing, but None"
            members = hvd.allgather(torch.tensor([hvd_rank()])).tolist()
            place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()]
            assert place == [members.index(hvd_rank()), len(members), *place[:2], 1]
            found.append(members)
        else:
            found.append(text)
        hvd.shutdown()
    return found


EVERYONE = list(range(4))
ACCEPTED = [  # what each of four processes gives
    [EVERYONE] * 4,
    [[]] * 4,  # all, as in Horovod
    [{"mpi": EVERYONE}] * 4,
    [[0, 2], [3, 1], [0, 2], [3, 1]],
    [{"mpi": [0]}, {"mpi": [3, 2, 1]}, {"mpi": [3, 2, 1]}, {"mpi": [3, 2, 1]}],
    [[1, 0, 3, 2]] * 4,
]
REFUSED = {
    "init: rank 2 is not in its comm=[0, 1]": [[0, 1]] * 4,
    "init: rank 0 has comm=[0, 1], but rank 1 has comm=[1, 2]": [[0, 1], [1, 2], [1, 2], [3]],
    "init: rank 1 has comm=[1, 9], but ranks are 0 to 3": [[0], [1, 9], [2], [3]],
    "init: rank 0 has comm=[0, 1, 2, 3], but rank 3 has comm=[3]": [*[EVERYONE] * 3, [3]],
}


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder in which a socket can be: the path of one has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="ciranda-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("folder", ["of the job", "by default"])
def test_init_of_a_part_makes_a_job_of_it(folder: str, short_path: Path) -> None:
    env = {"XDG_RUNTIME_DIR": str(short_path)}
    if folder == "by default":
        env |= {"CIRANDA_JOB_DIR": "", "CIRANDA_JOB_ID": f"{os.getpid()}"}
    comms = [*ACCEPTED, *REFUSED.values()]
    by_rank = values_of(run_ranks(places_of, 4, args=[comms], env=env))
    for rank, found in enumerate(by_rank):
        for comm, members in zip(ACCEPTED, found, strict=False):
            mine = comm[rank]["mpi"] if isinstance(comm[rank], dict) else comm[rank]
            assert members == (mine or EVERYONE)
        for beginning, text in zip(REFUSED, found[len(ACCEPTED) :], strict=True):
            assert text.startswith(f"{beginning}; give every rank a list that contains it")
    assert list(short_path.iterdir()) == []


def comm_on_rank_0_alone() -> str:
    text = said(lambda: hvd.init(comm=None if hvd_rank() else EVERYONE[:3]))
    assert not hvd.is_initialized()
    return text


def test_a_comm_that_some_do_not_give_is_one_error_on_all() -> None:
    for text in values_of(run_ranks(comm_on_rank_0_alone, 3)):
        assert re.fullmatch(
            r"rank [12] has init\(comm\)=None, rank 0 has a list or communicator; set the same for "
            "every rank",
            text,
        )


def part_of_several_hosts() -> str:
    with pytest.raises(RuntimeError) as caught:
        hvd.init(comm=[1, 0])
    assert not hvd.is_initialized()
    hvd.init(comm=[0, 1])
    assert hvd.size() == hvd.cross_size() == 2
    return str(caught.value)


def test_a_job_on_several_hosts_has_all_its_ranks(tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run([sys.executable, "-m", "ciranda", "key", str(key)], check=True, text=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        rendezvous = f"127.0.0.1:{free.getsockname()[1]}"

    def host(rank: int) -> dict[str, str]:
        place = {"LOCAL_RANK": "0", "LOCAL_SIZE": "1", "CROSS_RANK": f"{rank}", "CROSS_SIZE": "2"}
        place |= {"KEY_FILE": str(key), "RENDEZVOUS": rendezvous, "JOB_DIR": f"{tmp_path}/{rank}"}
        return {f"CIRANDA_{name}": value for name, value in place.items()}

    for text in values_of(run_ranks(part_of_several_hosts, 2, env=host)):
        assert text == (
            "init: comm=[1, 0] is not all ranks in their order, which a job on several hosts "
            "needs; start with all of them: init(process_sets=[ProcessSet([...])])"
        )


def fail_in_a_part() -> None:
    hvd.init(comm=[2, 1] if hvd_rank() else [0])
    if hvd_rank() == 2:
        raise RuntimeError("here")
    hvd.allreduce(torch.ones(1))


def test_a_failure_report_has_the_launchers_numbers() -> None:
    fine, victim, culprit = run_ranks(fail_in_a_part, 3)
    assert [fine.exit_code, victim.exit_code, culprit.exit_code] == [0, 1, 1]
    assert culprit.error_report["ciranda"]["rank"] == 2
    assert culprit.error_report["ciranda"]["victim_of"] is None
    assert victim.error_report["ciranda"]["rank"] == 1
    assert victim.error_report["ciranda"]["victim_of"] == 2
