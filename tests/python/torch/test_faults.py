"""A rank that raises, leaves, dies, is stopped or forks: the others learn who and why within a
second, nobody hangs, and nobody hides another rank's message."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends import over_backends_of_the_cpu
from ranks import Job, mark, report, run_ranks, start_ranks, values_of, wait_until_told

import ciranda.torch as hvd
from ciranda.errors import CirandaError, ForkedError, RankLostError

AT_ONCE_S = 10.0  # no timeout was waited for
PROMISED_S = 1.0


def until_it_fails(step: Callable[[int], Any], steps: int = 1_000_000) -> dict[str, Any]:
    """What ended a loop of steps, and when (all processes of a host share this clock)."""
    for i in range(steps):
        try:
            step(i)
        except CirandaError as error:
            return {
                "class": type(error).__name__,
                "text": str(error),
                "rank": error.rank,
                "time": time.monotonic(),
                "step": i,
            }
    return {"class": "nothing"}


# --- Ctrl-C while a rank waits -------------------------------------------------------------------


def interrupted(kind: str, own_handler: bool) -> Any:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if own_handler:
        signal.signal(signal.SIGUSR1, lambda *_: None)
    hvd.init()
    work = steps_of(kind)
    for i in range(2):
        work(i)
    try:
        if hvd.rank() == 0:
            mark("waits")
        else:
            wait_until_told("go on")
        work(2)
    except KeyboardInterrupt:
        return "interrupted"
    except RankLostError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize("kind", ["small", "large", "arena", "gather", "optimizer", "host step"])
def test_a_rank_that_waits_takes_an_interruption_at_once(kind: str) -> None:
    with start_ranks(interrupted, 2, args=[kind, False]) as job:
        job.wait_for_mark(0, "waits")
        time.sleep(0.5)  # most likely it does by then
        job.processes[0].send_signal(signal.SIGINT)
        job.processes[0].wait(30)  # although rank 1 does not come
        job.tell("go on")
        first, second = values_of(job.wait(30))
    assert first == "interrupted"
    assert re.search(
        r"rank 0 (\(pid \d+\) was interrupted while it waited for other ranks|has shut down)",
        second,
    )


def test_where_the_program_handles_signals_they_wait_for_the_call_to_return() -> None:
    with start_ranks(interrupted, 2, args=["small", True]) as job:
        job.wait_for_mark(0, "waits")
        job.processes[0].send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert job.processes[0].poll() is None
        job.tell("go on")
        assert values_of(job.wait(30)) == ["interrupted", "nothing"]


# --- a rank raises -------------------------------------------------------------------------------


def one_raises(where: str) -> None:
    hvd.init()

    def step(i: int) -> None:
        if hvd.rank() == 1 and i == 20:
            report({"raised": time.monotonic(), "pid": os.getpid()})
            raise ValueError("boom\nand a second line")
        if where == "computing":
            time.sleep(0.01)
        hvd.allreduce(torch.ones(100), name=f"loss.{i}")

    found = until_it_fails(step)
    report(found)
    again = until_it_fails(lambda _: hvd.broadcast(torch.ones(1), 0, name="later"))
    assert again["rank"] == found["rank"] and again["time"] - found["time"] < AT_ONCE_S
    handle = None
    with contextlib.suppress(CirandaError):
        handle = hvd.allreduce_async(torch.ones(1))
        assert hvd.poll(handle), "it failed at once"
        hvd.synchronize(handle)
    hvd.allreduce(torch.ones(1), name="uncaught")


@pytest.mark.parametrize("where", ["waiting", "computing"])
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_that_raises_is_named_with_its_exception(where: str, size: int) -> None:
    results = run_ranks(one_raises, size, args=[where])
    culprit = results[1]
    assert [result.exit_code for result in results] == [1] * size
    pid = culprit.value["pid"]
    assert "ValueError: boom" in culprit.stderr
    assert culprit.error_report is not None
    facts = culprit.error_report["ciranda"]
    assert culprit.error_report["message"]["message"] == "ValueError: boom"
    assert "and a second line" in culprit.error_report["message"]["extraInfo"]["py_callstack"]
    assert (facts["rank"], facts["pid"], facts["exception"]) == (1, pid, "ValueError")
    assert facts["victim_of"] is None and facts["in"] is None
    for rank, result in enumerate(results):
        if rank == 1:
            continue
        found = result.value
        assert found["class"] == "RankLostError" and found["rank"] == 1
        # Step 19 where this rank had not finished it yet.
        assert re.fullmatch(
            rf"allreduce 'loss\.(19|20)': rank 1 \(pid {pid}\) raised ValueError: boom",
            found["text"],
        ), found
        assert found["time"] - culprit.value["raised"] < AT_ONCE_S
        assert result.error_report is not None
        victim = result.error_report["ciranda"]
        assert victim["victim_of"] == 1
        assert victim["in"] == "uncaught"
        assert "ValueError: boom" in result.stderr


def wrapped() -> None:
    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("the real one")
    try:
        hvd.allreduce(torch.ones(1))
    except RankLostError as lost:
        raise RuntimeError("the framework gives up") from lost


def test_an_exception_about_a_lost_rank_is_a_victim_too() -> None:
    victim, culprit = run_ranks(wrapped, 2)
    assert victim.error_report is not None and culprit.error_report is not None
    assert victim.error_report["ciranda"]["victim_of"] == 1
    assert culprit.error_report["ciranda"]["victim_of"] is None
    assert victim.error_report["message"]["message"] == "RuntimeError: the framework gives up"


def two_raise() -> None:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 2:
        found = until_it_fails(lambda i: hvd.allreduce(torch.ones(1)))
        time.sleep(0.2)
        raise RankLostError(found["text"])
    time.sleep(0.05)
    raise [ValueError, KeyError][hvd.rank()](f"of rank {hvd.rank()}")


def test_two_ranks_that_raise_both_keep_their_message() -> None:
    first, second, victim = run_ranks(two_raise, 3)
    assert "ValueError: of rank 0" in first.stderr
    assert "KeyError: 'of rank 1'" in second.stderr
    for rank, result in enumerate((first, second)):
        assert result.error_report is not None
        assert result.error_report["ciranda"]["victim_of"] is None, rank
    assert re.search(
        r"rank [01] \(pid \d+\) raised (ValueError: of rank 0|KeyError)", victim.stderr
    )


def victims_leave_first() -> Any:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        report(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)
    if hvd.rank() == 0:
        hvd.allreduce(torch.ones(1), name="first")  # uncaught: this rank raises as a victim
    if hvd.rank() == 2:
        with contextlib.suppress(RankLostError):
            hvd.allreduce(torch.ones(1), name="first")
        sys.exit(0)
    time.sleep(1)  # rank 3 computes while the others have gone
    return until_it_fails(lambda i: hvd.allreduce(torch.ones(1), name="first"))


def test_victims_do_not_hide_the_culprit() -> None:
    results = run_ranks(victims_leave_first, 4)
    assert [result.exit_code for result in results] == [1, -signal.SIGKILL, 0, 0]
    pid = results[1].value
    assert results[3].value["rank"] == 1
    assert results[3].value["text"] == (
        f"allreduce 'first': rank 1 (pid {pid}) was lost: it ended without shutting down"
    )


# --- a rank leaves -------------------------------------------------------------------------------


def one_leaves(how: str) -> Any:
    hvd.init()

    def step(i: int) -> None:
        if hvd.rank() == 1 and i == 10:
            report({"left": time.monotonic(), "pid": os.getpid()})
            if how == "exit":
                sys.exit(0)
            elif how == "shutdown":
                hvd.shutdown()
                time.sleep(2)
                sys.exit(0)
            os._exit(0)
        hvd.allreduce(torch.ones(100_000), name="step")

    return until_it_fails(step)


@pytest.mark.parametrize(
    ("how", "size"), [("exit", 2), ("exit", 3), ("shutdown", 3), ("_exit", 2), ("_exit", 3)]
)
def test_a_rank_that_ends_early_is_named(how: str, size: int) -> None:
    results = run_ranks(one_leaves, size, args=[how])
    left = values_of(results)[1]
    for rank, result in enumerate(results):
        if rank == 1:
            continue
        found = result.value
        assert (found["class"], found["rank"], found["step"]) == ("RankLostError", 1, 10)
        assert found["time"] - left["left"] < AT_ONCE_S
        if how == "_exit":
            assert found["text"] == (
                f"allreduce 'step': rank 1 (pid {left['pid']}) was lost: it ended without "
                "shutting down"
            )
        else:
            assert re.fullmatch(
                # Another survivor may have left meanwhile.
                r"allreduce 'step': (rank 1 has|ranks 1, 0 have|ranks 1, 2 have) shut down and "
                r"will not take part; let every rank do the same steps before it ends",
                found["text"],
            ), found["text"]


def first_of_two_to_leave() -> Any:
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        sys.exit(0)
    if hvd.rank() == 2:
        wait_until_told("the others have left")
    return until_it_fails(lambda _: hvd.allreduce(torch.ones(1), name="step"))


def test_the_first_rank_that_left_is_at_fault_not_its_victim() -> None:
    with start_ranks(first_of_two_to_leave, 3) as job:
        for rank in (1, 0):  # rank 0 fails because rank 1 left, and leaves too
            job.processes[rank].wait(30)
        job.tell("the others have left")
        results = job.wait()
    assert results[0].value["rank"] == 1
    assert results[2].value["rank"] == 1, results[2].value


def some_leave_after_the_last_step() -> None:
    hvd.init()
    for _ in range(5):
        hvd.allreduce(torch.ones(1 << 18))
    if hvd.rank() == 0:
        time.sleep(0.5)  # saves a checkpoint while the others have ended


def test_ranks_may_end_at_different_times() -> None:
    results = run_ranks(some_leave_after_the_last_step, 3)
    values_of(results)
    assert [result.stderr for result in results] == [""] * 3


# --- a rank is killed ----------------------------------------------------------------------------


def steps_of(kind: str) -> Callable[[int], Any]:
    from ciranda.torch import ops

    big = torch.ones(1 << 22)
    if kind == "small":
        return lambda i: hvd.allreduce(torch.ones(4), name="x")
    if kind == "large":
        return lambda i: hvd.allreduce_(big, name="x")
    if kind == "arena":
        tensor = ops.arena_empty([1 << 22])
        return lambda i: ops.arena_allreduce_(tensor, name="x")
    if kind == "gather":
        return lambda i: hvd.allgather(big[: 1 << 20], name="x")
    if kind == "computing":

        def compute(i: int) -> None:
            deadline = time.monotonic() + 0.05
            while time.monotonic() < deadline:
                torch.ones(1000).sum()
            hvd.allreduce(torch.ones(4), name="x")

        return compute
    if kind in ("optimizer", "host step"):
        model = torch.nn.Linear(512, 512)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01),
            named_parameters=model.named_parameters(),
            shared_step="host" if kind == "host step" else False,
        )

        def train(i: int) -> None:
            optimizer.zero_grad()
            model(torch.ones(8, 512)).sum().backward()
            optimizer.step()

        return train
    assert kind == "absent"

    def wait(i: int) -> None:
        if hvd.rank() == 1:
            mark("running")
            time.sleep(60)
        hvd.allreduce(torch.ones(4), name="x")

    return wait


def run_until_lost(kind: str) -> Any:
    hvd.init()
    work = steps_of(kind)

    def step(i: int) -> None:
        work(i)
        if i == 3:
            mark("running")

    return until_it_fails(step)


@pytest.mark.timing
@pytest.mark.parametrize(
    "kind", ["small", "large", "arena", "gather", "computing", "optimizer", "host step", "absent"]
)
def test_survivors_of_a_killed_rank_name_it_within_a_second(kind: str) -> None:
    with start_ranks(run_until_lost, 3, args=[kind]) as job:
        job.wait_for_mark(1, "running")
        time.sleep(random.uniform(0.0, 0.1))
        killed = time.monotonic()
        job.processes[1].kill()
        results = job.wait(30)
    assert [result.exit_code for result in results] == [0, -signal.SIGKILL, 0]
    for rank in (0, 2):
        found = results[rank].value
        assert (found["class"], found["rank"]) == ("RankLostError", 1), found
        assert re.fullmatch(
            rf"all\w+ '.+': rank 1 \(pid {job.processes[1].pid}\) was lost: it ended without "
            "shutting down",
            found["text"],
        ), found
        assert found["time"] - killed < PROMISED_S


def computes_on() -> Any:
    hvd.init()
    hvd.barrier()
    mark("running")
    handles = [hvd.allreduce_async(torch.ones(10), name=f"h{i}") for i in range(5)]
    wait_until_told("rank 1 is dead")
    time.sleep(0.3)
    begin = time.monotonic()
    polled = [hvd.poll(handle) for handle in handles]
    found = [until_it_fails(lambda i, handle=handle: hvd.synchronize(handle)) for handle in handles]
    hvd.shutdown()
    return {"polled": polled, "found": found, "seconds": time.monotonic() - begin}


def test_pending_handles_of_a_survivor_fail_at_once() -> None:
    with start_ranks(computes_on, 2) as job:
        job.wait_for_mark(0, "running")
        job.wait_for_mark(1, "running")
        job.processes[1].send_signal(signal.SIGSTOP)
        job.processes[1].kill()
        job.processes[1].wait(10)
        job.tell("rank 1 is dead")
        value = job.wait()[0].value
    assert value["seconds"] < AT_ONCE_S
    # Rank 1 may have agreed to all of them before it was stopped: then they are done.
    for polled, found in zip(value["polled"], value["found"], strict=True):
        assert polled
        assert found["class"] == "nothing" or found["rank"] == 1


def dies_while_the_others_join(rank_that_dies: int) -> Any:
    mark("here")
    if int(os.environ["CIRANDA_RANK"]) == rank_that_dies:
        time.sleep(60)
    wait_until_told("go on")
    begin = time.monotonic()
    try:
        hvd.init()
    except Exception as error:
        return [type(error).__name__, str(error), time.monotonic() - begin]
    return ["nothing"]


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_dies_before_init_does_not_hang_the_others(dead: int) -> None:
    env = {"CIRANDA_START_TIMEOUT_SECONDS": "4"}
    with start_ranks(dies_while_the_others_join, 3, args=[dead], env=env) as job:
        for rank in range(3):
            job.wait_for_mark(rank, "here")
        job.processes[dead].kill()
        job.tell("go on")
        results = job.wait(30)
    for rank, result in enumerate(results):
        if rank != dead:
            assert result.exit_code == 0
            assert result.value[0] == "TimeoutError", result.value
            assert result.value[2] < 4 + AT_ONCE_S
            if dead == 1:
                assert result.value[1] == "these of the 3 ranks did not join within 4 s: 1"


# --- a rank is stopped ---------------------------------------------------------------------------


def sums(kind: str) -> Any:
    """Steps whose results are known, until the test has had its way."""
    hvd.init()
    size = hvd.size()
    model = torch.nn.Linear(64, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.001),
        named_parameters=model.named_parameters(),
    )
    steps, over, longest = 0, False, 0.0
    while not over:
        begin = time.monotonic()
        if kind == "optimizer":
            optimizer.zero_grad()
            model(torch.full((1, 64), float(hvd.rank()))).sum().backward()
            optimizer.step()
        else:
            mine = torch.full((1 << 21,), float(hvd.rank() + steps % 7))
            total = hvd.allreduce(mine, op=hvd.Sum, name="sum")
            assert bool((total == size * (size - 1) / 2 + size * (steps % 7)).all())
        steps += 1
        if steps == 5:
            mark("running")
        if steps % 5 == 0:  # all ranks stop after the same step
            told = os.path.exists(os.path.join(os.environ["CIRANDA_TEST_FOLDER"], "told-over"))
            votes = hvd.allreduce(torch.tensor([float(told)]), op=hvd.Max, name="over")
            over = bool(votes.item())
        longest = max(longest, time.monotonic() - begin)
    expected = 1.0 - steps * 0.001 * (size - 1) / 2
    if kind == "optimizer":
        torch.testing.assert_close(
            model.weight.detach(), torch.full((1, 64), expected), rtol=1e-3, atol=1e-3
        )
    return [steps, longest]


def test_a_rank_may_be_stopped_for_five_seconds() -> None:
    with (
        start_ranks(sums, 2, args=["allreduce"]) as one,
        start_ranks(sums, 2, args=["optimizer"]) as other,
    ):
        jobs = (one, other)
        for job in jobs:
            job.wait_for_mark(0, "running")
            job.processes[1].send_signal(signal.SIGSTOP)
        time.sleep(5)
        for job in jobs:
            assert all(process.poll() is None for process in job.processes)
            job.processes[1].send_signal(signal.SIGCONT)
        time.sleep(0.2)
        for job in jobs:
            job.tell("over")
        for job in jobs:
            results = job.wait(30)
            (steps, longest), (others, _) = values_of(results)
            assert steps == others > 5
            assert longest > 4, "it was in the middle of a step"
            assert [result.stderr for result in results] == ["", ""]


# --- fork ----------------------------------------------------------------------------------------


def in_child(action: Callable[[], Any]) -> str:
    """What `action` raises in a forked child, which must end within seconds."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            action()
            text = "nothing"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write_end, text.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        deadline = time.monotonic() + 10
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGABRT)
                os.waitpid(pid, 0)
                return "hangs"
            time.sleep(0.002)
        return pipe.read()


def forked_calls() -> dict[str, str]:
    hvd.init()
    ones = torch.ones(2)
    hvd.allreduce(ones)  # from here on the backend has its threads
    pending = hvd.allreduce_async(ones) if hvd.rank() == 0 else None
    found = {}
    if pending is not None:
        calls: dict[str, Callable[[], Any]] = {
            "init": hvd.init,
            "allreduce": lambda: hvd.allreduce(ones),
            "allreduce_async": lambda: hvd.allreduce_async(ones),
            "grouped_allreduce": lambda: hvd.grouped_allreduce([ones]),
            "broadcast": lambda: hvd.broadcast(ones, 0),
            "allgather": lambda: hvd.allgather(ones),
            "alltoall": lambda: hvd.alltoall(ones),
            "reducescatter": lambda: hvd.reducescatter(ones),
            "barrier": hvd.barrier,
            "allgather_object": lambda: hvd.allgather_object(1),
            "poll": lambda: hvd.poll(pending),
            "synchronize": lambda: hvd.synchronize(pending),
            "shutdown": hvd.shutdown,
            "is_initialized": lambda: hvd.is_initialized() and 1 / 0,
        }
        found = {name: in_child(call) for name, call in calls.items()}
        hvd.synchronize(pending)
    else:
        hvd.allreduce(ones)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2, "the parent goes on"
    return found


@over_backends_of_the_cpu
def test_a_forked_child_gets_a_clear_error() -> None:
    found, _ = values_of(run_ranks(forked_calls, 2))
    assert found.pop("shutdown") == "nothing"
    assert found.pop("is_initialized") == "nothing"
    for call, text in found.items():
        assert text.startswith(
            "ForkedError: this process was forked from a rank and is not a rank itself; call "
            "collectives in the parent"
        ), (call, text)


def writes_in_a_child() -> None:
    hvd.init()
    held = []
    for name, shared_step in ("whole", False), ("shared", "host"):
        model = torch.nn.Linear(8, 1)
        hvd.broadcast_parameters(model.state_dict(), 0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
            named_parameters=[(f"{name}.{n}", p) for n, p in model.named_parameters()],
            shared_step=shared_step,
        )
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        held += [model.weight.detach(), model.weight.grad]
    before = [tensor.clone() for tensor in held]

    def overwrite() -> None:
        for tensor in held:
            tensor.fill_(2000.0)
            assert torch.equal(tensor, torch.full_like(tensor, 2000.0)), "the child sees its own"

    hvd.barrier()
    if hvd.rank() == 0:
        assert in_child(overwrite) == "nothing"
    hvd.barrier()
    for tensor, value in zip(held, before, strict=True):
        assert torch.equal(tensor, value)


def test_what_a_forked_child_writes_stays_its_own() -> None:
    values_of(run_ranks(writes_in_a_child, 2))


def fork_under_way() -> None:
    hvd.init()
    # On its first call an operation of torch makes a table; a child forked meanwhile waits for that
    # for ever, also in plain torch.
    hvd.allreduce(torch.ones(1))
    over = threading.Event()

    def reduce() -> None:
        steps = 0
        while True:
            enough = torch.tensor([float(over.is_set())])
            handles = [hvd.allreduce_async(torch.ones(1000), name=f"{i}") for i in range(5)]
            done = hvd.allreduce(enough, op=hvd.Min, name="over").item()
            for handle in handles:
                hvd.synchronize(handle)
            steps += 1
            if done:
                return

    thread = threading.Thread(target=reduce)
    thread.start()
    for _ in range(15):
        text = in_child(lambda: hvd.allreduce(torch.ones(1)))
        assert text.startswith("ForkedError"), text
        text = in_child(lambda: hvd.synchronize(0))
        assert text in ("nothing",) or text.startswith("ForkedError"), text
    over.set()
    thread.join()


def test_a_fork_in_the_middle_of_an_operation_does_not_hang() -> None:
    values_of(run_ranks(fork_under_way, 2, env={"CIRANDA_OVERLAP": "on"}))


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def train_with_workers(until_killed: bool) -> Any:
    hvd.init()
    model = torch.nn.Linear(8, 1)
    hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-6), named_parameters=model.named_parameters()
    )
    loader = torch.utils.data.DataLoader(
        Numbers(), batch_size=8, num_workers=2, persistent_workers=True
    )
    seen = 0
    epochs = 100_000 if until_killed else 3
    try:
        for epoch in range(epochs):
            for batch in loader:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
                seen += len(batch)
            if epoch == 1:
                mark("training")
    except RankLostError as error:
        return [error.rank, time.monotonic(), str(error)]
    weights = hvd.allgather(model.weight.detach())
    assert torch.equal(weights[0], weights[1])
    return seen


def test_data_loader_workers_work() -> None:
    assert values_of(run_ranks(train_with_workers, 2, args=[False])) == [192, 192]


def test_a_killed_rank_is_noticed_while_its_workers_live() -> None:
    with start_ranks(train_with_workers, 2, args=[True]) as job:
        job.wait_for_mark(0, "training")
        job.wait_for_mark(1, "training")
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(job.processes[1].pid)],
            capture_output=True,
            text=True,
        ).stdout.split()
        assert len(children) >= 2
        killed = time.monotonic()
        job.processes[1].kill()
        rank, noticed, text = wait_for_one(job, 0)
        assert noticed - killed < AT_ONCE_S
        assert rank == 1 and "was lost: it ended without shutting down" in text


def wait_for_one(job: Job, rank: int) -> Any:
    return job.wait(30)[rank].value


def has_a_child_program() -> Any:
    hvd.init()
    if hvd.rank() == 1:
        subprocess.Popen(["sleep", "30"])
    return run_until_lost("small")


def test_a_killed_rank_is_noticed_while_programs_it_started_live() -> None:
    with start_ranks(has_a_child_program, 2) as job:
        job.wait_for_mark(0, "running")
        killed = time.monotonic()
        job.processes[1].kill()
        found = wait_for_one(job, 0)
    assert found["rank"] == 1 and found["time"] - killed < AT_ONCE_S


def test_forked_error_is_one_of_ours() -> None:
    assert issubclass(ForkedError, CirandaError)
