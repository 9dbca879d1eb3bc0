"""Tasks of a coordinator: breaks when one is lost, counts twice because somebody was killed in it,
or when a job waits for what cannot come."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ciranda.errors import InvalidArgumentError
from ciranda.torch import ps

pytestmark = pytest.mark.usefixtures("warm_start")

# Each push takes 1 from x.
PROGRAM = """
import os, signal, sys, torch, ciranda.torch as cr
from ciranda.errors import TaskFailedError
from ciranda.torch import ps

first_life = os.environ["CIRANDA_LIFE"] == "1"
def die():
    os.kill(os.getpid(), signal.SIGKILL)

cr.init()

@ps.per_worker
def trainer():
    x = torch.nn.Parameter(torch.zeros(40_000))
    optimizer = torch.optim.SGD([x], lr=1.0)
    return x, cr.DistributedOptimizer(optimizer, [("x", x)], ps=MODE)

@ps.task
def push(number, times=3):
    x, optimizer = trainer()
    for i in range(times):
        x.grad = torch.ones_like(x)
        optimizer.step()
        IN_TASK
    return {"number": number, "by": cr.rank()}

def make_value():
    @ps.task(name="value")
    def value():
        x, _ = trainer()
        return x[0].item()
    return value

value = make_value()

def main():
    MAIN

ps.run(main)
if not ps.is_coordinator() and cr.rank() == 0:
    x, _ = trainer()
    cr.broadcast_parameters({"x": x}, root_rank=0)
    print("in the end", x[0].item())
"""

ALL = """
    futures = [ps.schedule(push, n) for n in range(8)]
    ps.join()
    futures += [ps.schedule(push, n) for n in range(8, 20)]
    ps.join()
    assert ps.done() and futures[-1].done()
    assert [each.result()["number"] for each in futures] == list(range(20))
    if first_life and os.environ.get("DIES"):
        die()
    print("value", ps.schedule(value).result())
"""


@pytest.fixture
def run(launcher: Any) -> Any:
    def run(*options: str, main: str = ALL, in_task: str = "pass", mode: str = "ps.Async()") -> Any:
        program = launcher.folder / "train.py"
        text = PROGRAM.replace("    MAIN", main.strip("\n")).replace("MODE", mode)
        program.write_text(text.replace("IN_TASK", in_task))
        return launcher.run("-np", "2", "--ps", "2", "--coordinator", *options, str(program))

    return run


@pytest.mark.parametrize("mode", ["ps.Async()", "ps.Downpour(2, 3)"])
def test_each_task_is_done_once(run, mode):
    done = run(mode=mode)
    assert done.returncode == 0, done.stderr
    # Downpour pushes two steps as one, and what is left at the end of the task.
    assert "value -60.0" in done.stdout
    assert "in the end -60.0" in done.stdout


def test_what_dies_is_started_again_and_no_push_counts_twice(run):
    dies = "died = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'died'); "
    dies += "_ = number == 7 and i == 1 and not os.path.exists(died) and (open(died, 'w'), die())"
    done = run("--restarts", "2", "-x", "DIES=1", in_task=dies)
    assert done.returncode == 0, done.stderr
    assert "coordinator was ended by Killed, SIGKILL (9); it is started again" in done.stderr
    assert re.search(r"rank \d was ended by Killed", done.stderr)
    assert "value -60.0" in done.stdout
    assert "in the end -60.0" in done.stdout


def test_a_task_that_raises_is_named_and_the_others_go_on(run):
    main = """
    futures = [ps.schedule(push, n, times=1) for n in range(6)]
    try:
        ps.join()
    except TaskFailedError as failed:
        print(str(failed).splitlines()[0])
    ps.join()
    print("value", ps.schedule(value).result())
    futures[4].result()
"""
    done = run(main=main, in_task="_ = number == 4 and 1 / 0")
    assert done.returncode == 1
    said = "task 5, push(4, times=1), failed: ZeroDivisionError: division by zero"
    assert said in done.stdout
    assert "value -6.0" in done.stdout
    assert re.search("culprit +coordinator on .*, pid", done.stderr)
    assert f"TaskFailedError: {said}" in done.stderr


def test_wrong_use_is_a_sentence(run, launcher):
    refused = """
    for wrong in (lambda: cr.rank(), lambda: trainer(), lambda: ps.average(1.0),
                  lambda: ps.schedule(main), lambda: ps.schedule(push, object()),
                  lambda: ps.schedule(push, "x" * 70_000), lambda: cr.broadcast_parameters({}, 0)):
        try:
            wrong()
        except ValueError as problem:
            print(problem)
    assert cr.size() == 2
    print(ps.schedule(push, 0).result())
"""
    late = "other = torch.optim.SGD([x], lr=1.0); "
    late += "cr.DistributedOptimizer(other, [('x', x)], ps=ps.Async())"
    done = run(main=refused, in_task=late)
    assert done.returncode == 1
    for sentence in (
        "rank: this process is the coordinator, not a rank; call this function in a task",
        "trainer: each worker makes its own value, and this process is the coordinator",
        "ps.average: this process is the coordinator, which trains nothing",
        "is no task; decorate the function with @ps.task",
        "the arguments of task push must be JSON values",
        "bytes; the limit is 65536; pass large data through files",
        "broadcast_parameters: this process is the coordinator, which trains nothing",
    ):
        assert sentence in done.stdout, sentence
    assert "DistributedOptimizer: workers make it before their first task" in done.stderr

    done = run(main="    pass", mode="ps.Sync()")
    assert done.returncode == 1
    assert "would wait for other workers, which may have no task; use a mode" in done.stderr
    done = launcher.run("-np", "1", "--coordinator", "true")
    assert done.returncode == 2
    assert "--coordinator goes with --ps, for its workers' parameters" in done.stderr


def test_nobody_waits_for_who_does_not_take_part(launcher):
    program = launcher.folder / "train.py"
    program.write_text(
        "import ciranda.torch as cr\n"
        "from ciranda.torch import ps\n"
        "cr.init()\n"
        "ps.is_coordinator() or ps.run(None)\n"  # the coordinator ends
    )
    done = launcher.run("-np", "1", "--ps", "1", "--coordinator", str(program))
    assert done.returncode == 1
    assert "the coordinator has ended before its work was done" in done.stderr
    program.write_text(
        "import ciranda.torch as cr\n"
        "from ciranda.torch import ps\n"
        "cr.init()\n"
        "@ps.task\n"
        "def nothing(): pass\n"
        "ps.is_coordinator() and ps.run(lambda: ps.schedule(nothing))\n"  # the workers end
    )
    done = launcher.run("-np", "1", "--ps", "1", "--coordinator", str(program))
    assert done.returncode == 1
    assert "all workers have left, but task 1 is not done; every worker must call" in done.stderr


def test_tasks_have_names():
    with pytest.raises(InvalidArgumentError, match="lambda> is not a function of a module"):
        ps.task(lambda: 1)
    with pytest.raises(InvalidArgumentError, match="name must be a string, not ''"):
        ps.task(name="")(run_nothing)
    assert ps.task(name="one")(lambda: 1)() == 1
    with pytest.raises(
        InvalidArgumentError, match=r"two with the name one, .*<lambda> and .*run_n"
    ):
        ps.task(name="one")(run_nothing)
    with pytest.raises(InvalidArgumentError, match="copies must be a whole number from 1"):
        ps.task(copies=0)(run_nothing)
    with pytest.raises(InvalidArgumentError, match="schedule: only the coordinator schedules"):
        ps.schedule(ps.task(run_nothing))
    assert ps.task(run_nothing)() == "nothing"
    assert not ps.is_coordinator()


def run_nothing() -> str:
    return "nothing"
