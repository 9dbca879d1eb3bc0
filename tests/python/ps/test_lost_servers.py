"""A server is killed, and another one goes on where it was: breaks when a push counts twice or is
lost unnoticed, or when a worker does not go on by itself."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import time
from typing import Any

import pytest
import torch
from ps.counting import make, step, told
from ranks import mark, run_ranks, start_ranks, values_of, wait_until_told

import ciranda.torch as cr
from ciranda.errors import RankLostError
from ciranda.torch import ps

KILLS = 8


def steps_until_told(mode: str) -> dict[str, Any]:
    """Pushes that each take 1, or in rounds 1 together."""
    cr.init()
    parameter, optimizer = make(mode)
    pushes = 0
    while not told("done"):
        step(parameter, optimizer)
        pushes += 1
        if pushes == 3:
            mark("begun")
    cr.broadcast_parameters({"x": parameter}, root_rank=0)  # the newest, of each server
    values = {value.item() for value in parameter.detach()[::999]}
    servers = ps.stats()["servers"]
    return {
        "pushes": pushes,
        "values": sorted(values),
        "versions": [server["version"] for server in servers],
        "lost": [server["lost_pushes"] for server in servers],
    }


@pytest.mark.parametrize("durability", ["memory", "log", "disk"])
@pytest.mark.parametrize("mode", ["async", "ssp", "sync"])
def test_servers_are_killed_and_nothing_counts_twice_or_is_lost_unnoticed(
    mode: str, durability: str
) -> None:
    draw = random.Random(mode + durability)
    with start_ranks(steps_until_told, 2, args=(mode,), servers=2, durability=durability) as job:
        for rank in range(2):
            job.wait_for_mark(rank, "begun")
        for _ in range(KILLS):
            time.sleep(draw.uniform(0, 0.05))  # in the middle of whatever it does
            job.kill_server(draw.randrange(2))
        job.tell("done")
        results = values_of(job.wait())
        if durability != "memory":
            assert any("goes on from version" in job.server_said(server) for server in range(2))
    pushes = [result["pushes"] for result in results]
    versions = [max(of_server) for of_server in zip(*(r["versions"] for r in results), strict=True)]
    lost = [max(of_server) for of_server in zip(*(r["lost"] for r in results), strict=True)]
    # Of the worker that looked last.
    values = min(result["values"] for result in results)
    assert values == sorted({-version for version in versions})
    for server in range(2):
        if durability != "memory":
            assert lost[server] == 0
        if mode != "sync":
            assert versions[server] + lost[server] == sum(pushes)
        elif durability != "memory":
            assert max(pushes) <= versions[server] <= sum(pushes)


def steps_after_a_kill() -> str:
    cr.init()
    parameter, optimizer = make("async")
    step(parameter, optimizer)
    mark("begun")
    wait_until_told("killed")
    try:
        step(parameter, optimizer)
    except RankLostError as error:
        return str(error)
    return "went on"


def test_a_server_that_kept_nothing_ends_the_job() -> None:
    """Another one in its place has none of the parameters."""
    with start_ranks(steps_after_a_kill, 1, servers=2) as job:
        job.wait_for_mark(0, "begun")
        job.kill_server(1)
        job.tell("killed")
        (said,) = values_of(job.wait())
    assert said.startswith("server 1 is lost"), said


def test_who_does_not_come_back_is_waited_for_as_long_as_told() -> None:
    with start_ranks(
        steps_after_a_kill,
        1,
        servers=2,
        durability="log",
        env={"CIRANDA_PS_PATIENCE_SECONDS": "1"},
    ) as job:
        job.wait_for_mark(0, "begun")
        job.servers[1].kill()
        job.tell("killed")
        (said,) = values_of(job.wait())
    assert said == "server 1 is lost, and did not come back within 1 s", said


def comes_while_the_first_snapshot_is_made() -> float:
    wait_until_told("leased" if os.environ["CIRANDA_RANK"] == "0" else "begun")
    cr.init()
    mark("in")
    ps.stats()
    mark("asked")
    parameter, optimizer = make("async")
    mark("ready")
    step(parameter, optimizer)
    return parameter.max().item()


def test_a_first_snapshot_keeps_nobody_waiting_who_need_not_wait() -> None:
    """However long it takes: a lease keeps the file from being opened."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with start_ranks(comes_while_the_first_snapshot_is_made, 2, servers=2, durability="log") as job:
        while not (job.job_dir / "ps0" / "local").exists():
            time.sleep(0.001)
        state = job.folder / "state" / "0"
        leased = os.open(state / "unfinished-1", os.O_RDONLY | os.O_CREAT, 0o600)
        fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        job.tell("leased")
        while not (state / "log-1").exists():
            time.sleep(0.01)
        job.tell("begun")
        job.wait_for_mark(1, "asked")
        time.sleep(2.5)  # longer than a worker says nothing
        # The promise of an answer is that what it says is kept.
        assert not any((job.folder / str(rank) / "mark-ready").exists() for rank in range(2))
        fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        assert set(values_of(job.wait())) <= {-1.0, -2.0}
        os.close(leased)
    signal.signal(signal.SIGIO, before)


def steps_with_adam(is_killed: bool) -> list[list[float]]:
    cr.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(300, 70)
    optimizer = cr.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=1e-2),
        model.named_parameters(),
        ps=ps.Async(),
    )
    for number in range(60):
        optimizer.zero_grad()
        model(torch.full((4, 300), 0.01 * number)).square().mean().backward()
        optimizer.step()
        if is_killed and number % 10 == 9:
            mark(f"step-{number}")
            wait_until_told(f"killed-{number}")
    state = optimizer.state_dict()["state"][0]
    tensors = [*model.parameters(), state["exp_avg"], state["exp_avg_sq"], state["step"]]
    return [tensor.detach().flatten().tolist() for tensor in tensors]


def test_parameters_and_state_outlive_servers_to_the_bit() -> None:
    with start_ranks(steps_with_adam, 1, args=(True,), servers=2, durability="log") as job:
        for number in range(9, 60, 10):
            job.wait_for_mark(0, f"step-{number}")
            job.kill_server(number // 10 % 2)
            job.tell(f"killed-{number}")
        with_kills = values_of(job.wait())
    assert with_kills == values_of(run_ranks(steps_with_adam, 1, args=(False,), servers=2))


def test_a_server_that_is_ended_loses_nothing_whatever_it_promised() -> None:
    with start_ranks(steps_until_told, 1, args=("async",), servers=1, durability="memory") as job:
        job.wait_for_mark(0, "begun")
        job.servers[0].send_signal(signal.SIGTERM)
        assert job.servers[0].wait(30) == -signal.SIGTERM  # not as if nobody needed it any more
        job.kill_server(0)
        job.tell("done")
        (result,) = values_of(job.wait())
    assert result["versions"] == [result["pushes"]] and result["lost"] == [0]
