"""A worker may die, be stopped and come back; a server may not, and is named."""

from __future__ import annotations

import os
import signal

import pytest
from ps.counting import MODES, make, step, told
from ranks import mark, start_ranks, values_of, wait_until_told

import ciranda.torch as cr
from ciranda.errors import RankLostError
from ciranda.torch import ps


def dies_and_comes_back(mode: str) -> list[float]:
    cr.init()
    parameter, optimizer = make(mode)
    pushes = 0
    if cr.rank() == 0:  # goes on whatever happens
        while not told("done"):
            step(parameter, optimizer)
            pushes += 1
    elif os.environ["CIRANDA_LIFE"] == "1":
        for _ in range(5):
            step(parameter, optimizer)
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        pushes = ps.stats()["servers"][0]["workers"][1]["pushes"]  # in its earlier life
        assert pushes == 5
        for _ in range(5):
            step(parameter, optimizer)
            pushes += 1
        mark("done")
        cr.shutdown()  # rounds go on without it
        return [pushes]
    cr.broadcast_parameters({"x": parameter}, root_rank=0)
    values = {value.item() for value in parameter.detach()[::999]}
    assert len(values) == 1, values
    servers = ps.stats()["servers"]
    return [pushes, values.pop(), *(server["version"] for server in servers)]


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_dies_and_comes_back_and_nothing_is_lost_or_counts_twice(mode: str) -> None:
    with start_ranks(dies_and_comes_back, 2, args=(mode,), servers=2) as job:
        assert job.processes[1].wait(60) == -signal.SIGKILL
        job.start_again(1)
        job.wait_for_mark(1, "done")
        job.tell("done")
        (pushes, value, *versions), (others,) = values_of(job.wait())
    assert others == 10
    assert versions == [-value] * 2
    if mode == "sync":  # each round takes 1, whoever is in it
        assert pushes <= -value <= pushes + others
    else:
        assert -value == pushes + others


def goes_on_alone(mode: str) -> float:
    cr.init()
    parameter, optimizer = make(mode)
    for _ in range(5):
        step(parameter, optimizer)
    if cr.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    wait_until_told("it is dead")
    for _ in range(5):
        step(parameter, optimizer)
    return parameter[0].item()


@pytest.mark.parametrize("mode", MODES)
def test_nobody_waits_for_the_dead(mode: str) -> None:
    with start_ranks(goes_on_alone, 2, args=(mode,), servers=1) as job:
        assert job.processes[1].wait(60) == -signal.SIGKILL
        job.tell("it is dead")
        alive, _ = job.wait()
    assert alive.exit_code == 0, alive.stderr
    assert alive.value == (-10 if mode == "sync" else -15)


def loses_a_server() -> str:
    cr.init()
    parameter, optimizer = make("async")
    step(parameter, optimizer)
    mark("trains")
    try:
        while True:
            step(parameter, optimizer)
    except RankLostError as error:
        first = str(error)
    with pytest.raises(RankLostError):
        optimizer.state_dict()
    return first


def test_a_lost_server_is_named_to_every_worker() -> None:
    with start_ranks(loses_a_server, 2, servers=2) as job:
        for rank in range(2):
            job.wait_for_mark(rank, "trains")
        job.servers[1].kill()
        assert values_of(job.wait()) == ["server 1 is lost"] * 2


def raises_for_it() -> None:
    cr.init()
    parameter, optimizer = make("async")
    mark("trains")
    while True:
        step(parameter, optimizer)


def test_the_launcher_learns_whose_victims_they_are() -> None:
    with start_ranks(raises_for_it, 2, servers=2) as job:
        for rank in range(2):
            job.wait_for_mark(rank, "trains")
        job.servers[1].kill()
        for result in job.wait():
            assert result.exit_code == 1
            assert result.error_report is not None
            assert result.error_report["ciranda"]["victim_of"] == ~1
