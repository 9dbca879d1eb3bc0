"""Wrong use: every mistake is one sentence, on the ranks that it concerns, at once, and the job
can go on afterwards."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import mark, run_ranks, start_ranks, values_of, wait_until_told

import ciranda.torch as hvd
from ciranda import errors
from ciranda.torch import ops, where

AT_ONCE_S = 5.0  # no timeout was waited for


def attempt(action: Callable[[], Any]) -> list[Any]:
    """[class, text, seconds] of what `action` raises."""
    begin = time.monotonic()
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error), time.monotonic() - begin]
    return ["nothing", "", time.monotonic() - begin]


# --- refused by the rank itself ------------------------------------------------------------------

WIDE = "pass tensor.contiguous()"
ROWS = "a 0-dim tensor has no rows; pass tensor.unsqueeze(0)"
DTYPES = "uint8, int8, int32, int64, float16, bfloat16, float32, float64"
NO_OP = "op is not one of Average, Sum, Min, Max, Product"


def refusals() -> dict[str, tuple[Callable[[], Any], str]]:
    ones, wide, scalar = torch.ones(4), torch.ones(3, 4).T, torch.tensor(1.0)
    sparse, meta = torch.eye(2).to_sparse(), torch.ones(2, device="meta")
    table: dict[str, tuple[Callable[[], Any], str]] = {}
    for name, kind in {
        "allreduce": hvd.allreduce,
        "allreduce_": hvd.allreduce_,
        "allreduce_async": hvd.allreduce_async,
        "allreduce_async_": hvd.allreduce_async_,
        "grouped_allreduce": lambda tensor: hvd.grouped_allreduce([ones, tensor]),
        "broadcast": lambda tensor: hvd.broadcast(tensor, 0),
        "broadcast_": lambda tensor: hvd.broadcast_(tensor, 0),
        "allgather": hvd.allgather,
        "grouped_allgather": lambda tensor: hvd.grouped_allgather([ones, tensor]),
        "alltoall": lambda tensor: hvd.alltoall(tensor, [len(tensor) if tensor.dim() else 0, 0]),
        "reducescatter": hvd.reducescatter,
        "reducescatter_async": hvd.reducescatter_async,
    }.items():
        op = re.sub("grouped_|_async|_$", "", name)
        table |= {
            f"{name} of a transposed tensor": (
                lambda kind=kind: kind(wide),
                f"{op}: the tensor is not contiguous; {WIDE}",
            ),
            f"{name} of a sparse tensor": (
                lambda kind=kind: kind(sparse),
                f"{op}: the tensor is sparse; pass tensor.to_dense()",
            ),
            f"{name} on another device": (
                lambda kind=kind: kind(meta),
                f"{op}: the tensor is on meta, where tensors have no values; pass a tensor that "
                "has values",
            ),
        }
        if op in ("allreduce", "reducescatter"):
            table[f"{name} of uint64"] = (
                lambda kind=kind: kind(torch.ones(2, dtype=torch.uint64)),
                f"{op}: dtype UInt64 is not supported; convert the tensor to one of {DTYPES}",
            )
            table[f"{name} of bool"] = (
                lambda kind=kind: kind(torch.ones(2, dtype=torch.bool)),
                f"{op}: the average of bool is not a bool; use op=Sum (any), op=Min (all), or "
                "convert the tensor",
            )
        if op in ("allgather", "alltoall", "reducescatter"):
            table[f"{name} of a 0-dim tensor"] = (lambda kind=kind: kind(scalar), f"{op}: {ROWS}")
    not_a_rank = "is not a rank; ranks are 0 to 1"
    splits = "splits must be 2 non-negative row counts that add up to dimension 0 (4), but there"
    return table | {
        "a tensor with its name": (
            lambda: hvd.allreduce(wide, name="layer.weight"),
            f"allreduce 'layer.weight': the tensor is not contiguous; {WIDE}",
        ),
        "an expanded tensor": (
            lambda: hvd.allreduce_(torch.ones(1).expand(3)),
            f"allreduce: the tensor is not contiguous; {WIDE}",
        ),
        "negated view in the arena": (
            lambda: ops.arena_allreduce_(torch._neg_view(ops.arena_empty([4]))),
            "allreduce: the tensor is a lazily negated or conjugated view; pass tensor.clone()",
        ),
        "op and average": (
            lambda: hvd.allreduce(ones, average=True, op=hvd.Sum),
            "give either op or average (deprecated), not both",
        ),
        "an op that is none": (lambda: hvd.allreduce(ones, op=17), NO_OP),
        "a negative op": (lambda: hvd.allreduce_async(ones, op=-1), NO_OP),
        "reducescatter by Max": (
            lambda: hvd.reducescatter(ones, op=hvd.Max),
            "reducescatter: op must be Average or Sum",
        ),
        "no tensors": (
            lambda: hvd.grouped_allreduce([]),
            "allreduce: the list of tensors is empty",
        ),
        "no tensors to gather": (
            lambda: hvd.grouped_allgather([]),
            "allgather: the list of tensors is empty",
        ),
        "root above": (lambda: hvd.broadcast(ones, 2), f"broadcast: root_rank 2 {not_a_rank}"),
        "root below": (lambda: hvd.broadcast_(ones, -1), f"broadcast: root_rank -1 {not_a_rank}"),
        "too few splits": (lambda: hvd.alltoall(ones, [4]), f"{splits} are 1 that add up to 4"),
        "wrong sum": (lambda: hvd.alltoall(ones, [4, 1]), f"{splits} are 2 that add up to 5"),
        "negative split": (lambda: hvd.alltoall(ones, [5, -1]), f"{splits} are 2 that add up to 4"),
        "half a row": (
            lambda: hvd.alltoall(ones, [1.5, 2.5]),
            "alltoall: splits must be whole numbers, but are [1.5, 2.5]",
        ),
        "uneven without splits": (
            lambda: hvd.alltoall(torch.ones(3), name="x"),
            "alltoall 'x': dimension 0 (3) does not divide evenly among 2 ranks; pass splits",
        ),
        "a long name": (
            lambda: hvd.allreduce(ones, name="n" * 257),
            "257 exceeds the limit of 256",
        ),
        "a factor that is no number": (
            lambda: hvd.allreduce(ones, prescale_factor=math.nan),
            "a scale factor is not finite",
        ),
        "a process set": (
            lambda: hvd.allreduce(ones, process_set=hvd.ProcessSet([0])),
            "is not known to the ranks; call add_process_set() on every rank",
        ),
        "init with one set twice": (
            lambda: hvd.init(process_sets=[hvd.ProcessSet([0])] * 2),
            "init: process_sets has a second set of [0]; process sets must be unique",
        ),
        "init of a rank twice": (
            lambda: hvd.init(comm=[0, 0]),
            "init: comm=[0, 0] must name ranks of the job, each once",
        ),
        "init of no ranks": (
            lambda: hvd.init(comm=7),
            "init: comm must be a list of ranks or an mpi4py communicator, not 7",
        ),
        "poll of nothing": (
            lambda: hvd.poll(99),
            "poll: there is no unfinished operation with handle 99",
        ),
    }


def refuse_on_rank_0() -> dict[str, Any]:
    hvd.init()
    found = {}
    if hvd.rank() == 0:
        for case, (action, _) in refusals().items():
            found[case] = [*attempt(action), ""]
            try:
                action()
            except Exception as error:
                found[case][3] = "ValueError" if isinstance(error, ValueError) else "other"
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2, "the other rank noticed nothing"
    return found


def test_bad_arguments_are_refused_in_one_sentence_and_only_there() -> None:
    found, nothing = values_of(run_ranks(refuse_on_rank_0, 2))
    assert nothing == {}
    for case, (_, text) in refusals_by_name().items():
        name, said, seconds, base = found[case]
        assert text in said, (case, name, said)
        assert "\n" not in said, (case, said)
        assert seconds < AT_ONCE_S, case
        assert base == "ValueError", (case, name)


def refusals_by_name() -> dict[str, tuple[Callable[[], Any], str]]:
    return refusals()


# --- what ranks disagree about -------------------------------------------------------------------


def with_own_fusion_threshold() -> list[Any]:
    os.environ["CIRANDA_FUSION_THRESHOLD"] = ["0", "1000000"][int(os.environ["CIRANDA_RANK"])]
    return attempt(hvd.init)


def test_another_setting_is_refused_by_all_ranks():
    for kind, text, seconds in values_of(run_ranks(with_own_fusion_threshold, 2)):
        assert kind == "InvalidArgumentError"
        assert text == (
            "rank 1 has CIRANDA_FUSION_THRESHOLD=1000000, rank 0 has 0; set the same for every rank"
        )
        assert seconds < 10


def submit(case: str) -> Any:
    """The same call on every rank, but for one thing on rank 1."""
    odd = hvd.rank() == 1
    ones = torch.ones(2, 3)
    match case:
        case "shape":
            return hvd.allreduce(torch.ones(2, 4) if odd else ones, name="x")
        case "dimensions":
            return hvd.allreduce(torch.ones(6) if odd else ones, name="x")
        case "dtype":
            return hvd.allreduce(ones.double() if odd else ones, name="x")
        case "op":
            return hvd.allreduce(ones, name="x", op=hvd.Max if odd else hvd.Sum)
        case "prescale":
            return hvd.allreduce(ones, name="x", prescale_factor=0.5 if odd else 1.0)
        case "postscale":
            return hvd.allreduce(ones, name="x", postscale_factor=0.25 if odd else 2.0)
        case "root":
            return hvd.broadcast(ones, int(odd), name="x")
        case "group":
            return hvd.grouped_allreduce([ones] * (2 if odd else 3), name="x")
        case "member":
            return hvd.grouped_allreduce([ones, ones.half() if odd else ones], name="x")
        case "row":
            return hvd.allgather(torch.ones(5, 4) if odd else ones, name="x")
        case "gathered dtype":
            return hvd.allgather(ones.long() if odd else ones, name="x")
        case "sent row":
            return hvd.alltoall(torch.ones(2, 4) if odd else ones, [1, 1], name="x")
        case "scattered shape":
            return hvd.reducescatter(torch.ones(4) if odd else ones, name="x")
        case "unnamed":
            return hvd.allreduce(torch.ones(1 + odd))
    raise AssertionError(case)


SAME = "submit the same {} on every rank"
MISMATCHES = {
    "shape": "allreduce 'x': shapes differ: rank 0 has float32 [2, 3], rank 1 has float32 [2, 4]; "
    + SAME.format("shape"),
    "dimensions": "allreduce 'x': shapes differ: rank 0 has float32 [2, 3], rank 1 has "
    "float32 [6]; " + SAME.format("shape"),
    "dtype": "allreduce 'x': dtypes differ: rank 0 has float32 [2, 3], rank 1 has float64 [2, 3]; "
    + SAME.format("dtype"),
    "op": "allreduce 'x': ops differ: rank 0 has op Sum, rank 1 has op Max; " + SAME.format("op"),
    "prescale": "allreduce 'x': prescale factors differ: rank 0 has prescale factor 1, rank 1 has "
    "prescale factor 0.5; " + SAME.format("prescale factor"),
    "postscale": "allreduce 'x': postscale factors differ: rank 0 has postscale factor 2, rank 1 "
    "has postscale factor 0.25; " + SAME.format("postscale factor"),
    "root": "broadcast 'x': root ranks differ: rank 0 has root rank 0, rank 1 has root rank 1; "
    + SAME.format("root rank"),
    "group": "allreduce 'x': numbers of tensors differ: rank 0 has 3 tensors, rank 1 has 2 tensors;"
    " submit the same tensors on every rank",
    "member": "allreduce 'x', tensor [1] of 2: dtypes differ: rank 0 has float32 [2, 3], rank 1 "
    "has float16 [2, 3]; " + SAME.format("dtype"),
    "row": "allgather 'x': shapes differ: rank 0 has float32 [*, 3], rank 1 has float32 [*, 4]; "
    + SAME.format("shape"),
    "gathered dtype": "allgather 'x': dtypes differ: rank 0 has float32 [*, 3], rank 1 has "
    "int64 [*, 3]; " + SAME.format("dtype"),
    "sent row": "alltoall 'x': shapes differ: rank 0 has float32 [*, 3], rank 1 has "
    "float32 [*, 4]; " + SAME.format("shape"),
    "scattered shape": "reducescatter 'x': shapes differ: rank 0 has float32 [2, 3], rank 1 has "
    "float32 [4]; " + SAME.format("shape"),
    "unnamed": "shapes differ: rank 0 has float32 [1], rank 1 has float32 [2]; "
    + SAME.format("shape"),
}


def mismatch_all() -> dict[str, Any]:
    hvd.init()
    found: dict[str, Any] = {}
    for case in MISMATCHES:
        found[case] = attempt(lambda case=case: submit(case))
        # The name is free again and the World goes on.
        assert hvd.allreduce(torch.ones(1), name="x", op=hvd.Sum).item() == hvd.size()
    try:
        submit("shape")
    except errors.MismatchError as error:
        assert isinstance(error, hvd.HorovodInternalError)
        assert error.tensor == "x"
    return found


def test_a_mismatch_is_told_to_every_rank_at_once() -> None:
    for found in values_of(run_ranks(mismatch_all, 2)):
        for case, text in MISMATCHES.items():
            name, said, seconds = found[case]
            assert (name, said) == ("MismatchError", said)
            assert text in said, (case, said)
            assert seconds < AT_ONCE_S, case


def test_a_mismatch_of_many_ranks_names_them_all() -> None:
    texts = {found["shape"][1] for found in values_of(run_ranks(mismatch_all, 4))}
    assert texts == {
        "allreduce 'x': shapes differ: ranks 0, 2, 3 have float32 [2, 3], rank 1 has "
        "float32 [2, 4]; " + SAME.format("shape")
    }


# --- names ---------------------------------------------------------------------------------------


def name_twice() -> list[list[Any]]:
    hvd.init()
    first = hvd.allreduce_async(torch.ones(3), name="grad", op=hvd.Sum)
    again = [
        attempt(lambda: hvd.allreduce_async(torch.ones(3), name="grad", op=hvd.Sum)),
        attempt(lambda: hvd.grouped_allreduce([torch.ones(3)], name="grad")),
    ]
    hvd.barrier()
    assert hvd.synchronize(first).tolist() == [2, 2, 2], "the first one is not harmed"
    assert hvd.allreduce(torch.ones(3), name="grad", op=hvd.Sum).tolist() == [2, 2, 2]
    return again


def name_twice_on_one_rank() -> list[list[Any]]:
    hvd.init()
    if hvd.rank() == 0:
        return name_twice()
    hvd.barrier()
    assert hvd.allreduce(torch.ones(3), name="grad", op=hvd.Sum).tolist() == [2, 2, 2]
    assert hvd.allreduce(torch.ones(3), name="grad", op=hvd.Sum).tolist() == [2, 2, 2]
    return []


def test_a_name_in_flight_is_refused() -> None:
    found, _ = values_of(run_ranks(name_twice_on_one_rank, 2))
    for name, said, seconds in found:
        assert name == "DuplicateNameError"
        assert "'grad'" in said and "\n" not in said
        assert seconds < AT_ONCE_S


# --- before init, after shutdown -----------------------------------------------------------------


def everything() -> dict[str, Callable[[], Any]]:
    ones = torch.ones(2)
    return {
        "rank": hvd.rank,
        "size": hvd.size,
        "local_rank": hvd.local_rank,
        "local_size": hvd.local_size,
        "cross_rank": hvd.cross_rank,
        "cross_size": hvd.cross_size,
        "stats": hvd.stats,
        "allreduce": lambda: hvd.allreduce(ones),
        "allreduce_async": lambda: hvd.allreduce_async(ones),
        "allreduce_": lambda: hvd.allreduce_(ones),
        "allreduce with grad": lambda: hvd.allreduce(ones.clone().requires_grad_()),
        "grouped_allreduce": lambda: hvd.grouped_allreduce([ones]),
        "broadcast": lambda: hvd.broadcast(ones, 0),
        "allgather": lambda: hvd.allgather(ones),
        "alltoall": lambda: hvd.alltoall(ones),
        "reducescatter": lambda: hvd.reducescatter(ones),
        "barrier": hvd.barrier,
        "broadcast_object": lambda: hvd.broadcast_object(1),
        "allgather_object": lambda: hvd.allgather_object(1),
        "broadcast_parameters": lambda: hvd.broadcast_parameters({"a": ones}, 0),
        "DistributedOptimizer": lambda: hvd.DistributedOptimizer(
            torch.optim.SGD([torch.nn.Parameter(ones.clone())], lr=0.1)
        ).step(),
    }


def outside_of_init() -> dict[str, Any]:
    assert not hvd.is_initialized()
    before = {name: attempt(action) for name, action in everything().items()}
    hvd.shutdown()  # no effect
    hvd.init()
    assert hvd.is_initialized()
    unfinished = hvd.allreduce_async(torch.ones(2)) if hvd.rank() == 0 else None
    if hvd.rank() == 1:
        wait_until_told("rank 0 has shut down")  # else its leaving is what ends the operation
    hvd.shutdown()
    mark("shut down")
    assert not hvd.is_initialized()
    after = {name: attempt(action) for name, action in everything().items()}
    pending = None
    if unfinished is not None:
        assert hvd.poll(unfinished)
        pending = attempt(lambda: hvd.synchronize(unfinished))
        assert hvd.synchronize(unfinished) is None
    return {"before": before, "after": after, "pending": pending}


def test_nothing_works_before_init_and_after_shutdown() -> None:
    with start_ranks(outside_of_init, 2) as job:
        job.wait_for_mark(0, "shut down")
        job.tell("rank 0 has shut down")
        found = values_of(job.wait())
    for when in ("before", "after"):
        for value in found:
            for call, (name, said, seconds) in value[when].items():
                assert name == "NotInitializedError", (when, call, name, said)
                assert said == "ciranda has not been initialized; call init() first", call
                assert seconds < AT_ONCE_S, call
    name, said, seconds = found[0]["pending"]
    assert name == "ShutdownError"
    assert said == (
        "allreduce 'allreduce.noname': ciranda was shut down on this rank before the operation "
        "was done"
    )
    assert seconds < AT_ONCE_S


def test_not_initialized_is_a_value_error_as_in_horovod() -> None:
    assert issubclass(errors.NotInitializedError, ValueError)
    assert issubclass(errors.DuplicateNameError, ValueError)
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert hvd.HorovodInternalError is errors.CirandaError
    for name in ("MismatchError", "RankLostError", "ShutdownError", "ForkedError"):
        assert issubclass(getattr(errors, name), errors.CirandaError)
    assert issubclass(errors.CirandaError, RuntimeError)


# --- a step that a rank does not do --------------------------------------------------------------


def one_rank_is_late() -> float:
    hvd.init()
    hvd.allreduce(torch.ones(1), name="known")
    if hvd.rank() == 1:
        time.sleep(2.6)
    handles = [hvd.allreduce_async(torch.ones(1), name=name) for name in ("known", "new")]
    for handle in handles:
        hvd.synchronize(handle)
    hvd.barrier()
    return hvd.stats()["waiting_s"]


def test_a_stall_is_reported_with_tensors_and_missing_ranks() -> None:
    results = run_ranks(one_rank_is_late, 3, env={"CIRANDA_STALL_WARNING_SECONDS": "1"})
    waited = values_of(results)
    for rank in (0, 2):
        text = results[rank].stderr
        assert re.search(
            rf"ciranda: rank {rank}: waiting for rank 1 for [12] s: allreduce 'known'"
            r"( \(call 1\))?, 'new'; rank 1 has not submitted them\. "
            r"Check that every rank runs the same steps\.\n",
            text,
        ), text
        assert waited[rank] > 2
    shown = results[1].stderr
    assert shown.count("ciranda: rank 1: other ranks wait for this one, which is here:") in (1, 2)
    assert "thread MainThread" in shown and "in one_rank_is_late\n" in shown
    assert "time.sleep(2.6)" in shown


LEAVES_WHILE_IT_SHOWS = """
import threading, time
import torch
import ciranda.torch as hvd
from ciranda.torch import where

hvd.init()
begun = threading.Event()

def show():
    begun.set()
    time.sleep(0.5)  # as where stderr is slow

where.show = show
if hvd.rank() == 1:
    begun.wait()
else:
    try:
        hvd.allreduce(torch.ones(1))
    except hvd.HorovodInternalError:
        pass
"""


def test_a_rank_that_ends_while_it_shows_where_it_is_ends_well() -> None:
    stall = {"CIRANDA_STALL_WARNING_SECONDS": "1"}
    results = run_ranks(LEAVES_WHILE_IT_SHOWS, 2, env=stall, fresh=True)
    values_of(results)
    assert "Exception ignored" not in results[1].stderr


ENDS_AFTER_A_STALL = """
import torch
import ciranda.torch as hvd

hvd.init()
model = torch.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), shared_step=False
)
if hvd.rank() == 0:
    hvd.allgather_object("of nobody else")
else:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.soak
def test_a_hundred_jobs_end_after_a_stall_with_their_exit_codes() -> None:
    """A rank that has ended with SIGABRT once in 80 times had a thread of its own in Python."""
    stall = {"CIRANDA_STALL_WARNING_SECONDS": "1", "CIRANDA_STALL_SHUTDOWN_SECONDS": "2"}
    for _ in range(25):
        with contextlib.ExitStack() as jobs:
            started = [
                jobs.enter_context(start_ranks(ENDS_AFTER_A_STALL, 2, env=stall, fresh=True))
                for _ in range(4)
            ]
            for job in started:
                for result in job.wait():
                    assert result.exit_code == 1, result
                    assert "TimeoutError" in result.stderr, result
                    assert "terminate called" not in result.stderr
                    assert "Exception ignored" not in result.stderr


def test_nobody_is_shown_where_a_rank_is_that_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    where.show()
    assert capsys.readouterr().err == ""


SHUTDOWN = {"CIRANDA_STALL_SHUTDOWN_SECONDS": "2"}


def one_rank_never_comes() -> list[Any]:
    hvd.init()
    if hvd.rank() == 1:
        time.sleep(4)
        return attempt(lambda: hvd.allreduce(torch.ones(1), name="w"))
    return attempt(lambda: hvd.allreduce(torch.ones(1), name="w"))


def test_a_stall_ends_the_job_when_asked_to() -> None:
    """Whether it was warned of before, or is never."""
    with contextlib.ExitStack() as jobs:
        started = [
            jobs.enter_context(start_ranks(one_rank_never_comes, 2, env={**SHUTDOWN, **warning}))
            for warning in ({"CIRANDA_STALL_WARNING_SECONDS": text} for text in ("0", "1", "60"))
        ]
        for job in started:
            (name, said, seconds), late = values_of(job.wait())
            assert name == "TimeoutError"
            assert "rank 1 has not submitted it" in said and "'w'" in said
            assert seconds > 1.9
            assert late[0] == "TimeoutError", late


def test_ranks_that_never_start_are_named() -> None:
    def place(rank: int) -> dict[str, str]:
        return {"CIRANDA_SIZE": "4", "CIRANDA_START_TIMEOUT_SECONDS": "1"}

    results = run_ranks(join, 2, env=place)
    first, second = values_of(results)
    assert first[:2] == ["TimeoutError", "these of the 4 ranks did not join within 1 s: 2, 3"]
    assert second[0] == "TimeoutError", second


def join() -> list[Any]:
    return attempt(hvd.init)


def test_ranks_that_disagree_about_the_size_are_told() -> None:
    results = run_ranks(join, 2, env=lambda rank: {"CIRANDA_SIZE": str(2 + rank)})
    for name, said, seconds in values_of(results):
        assert name == "InvalidArgumentError"
        assert "expects 3 ranks, rank 0 expects 2; start every rank with the same size" in said
        assert seconds < AT_ONCE_S


def test_a_rank_that_came_twice_is_told() -> None:
    results = run_ranks(join, 3, env=lambda rank: {"CIRANDA_RANK": str(min(rank, 1))})
    for name, said, _ in values_of(results):
        assert name == "InvalidArgumentError"
        assert re.search(r"expected 3 ranks, but rank 1 came twice \(pid \d+ and pid \d+\)", said)


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("CIRANDA_RANK", "x", "CIRANDA_RANK is 'x'; it should be a whole number from 0 to 1"),
        ("CIRANDA_RANK", "2", "CIRANDA_RANK is '2'; it should be a whole number from 0 to 1"),
        ("CIRANDA_SIZE", "0", "CIRANDA_SIZE is '0'; it should be a whole number from 1 to 4096"),
        ("CIRANDA_OVERLAP", "yes", "CIRANDA_OVERLAP is 'yes'; it should be auto, on or off"),
    ],
)
def test_a_bad_variable_is_named(variable: str, value: str, text: str) -> None:
    place = {"CIRANDA_RANK": "0", "CIRANDA_SIZE": "2", variable: value}
    ((name, said, _),) = values_of(run_ranks(join, 1, env=place))
    assert name == "InvalidArgumentError"
    assert said == f"the environment variable {text}"
