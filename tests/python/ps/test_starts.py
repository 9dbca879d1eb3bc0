"""Servers and workers are killed while a job starts: breaks when it stands still then, or fails."""

from __future__ import annotations

import os
import random
import re
import time
from typing import Any

import pytest
from ps.counting import make, step
from ranks import mark, start_ranks, values_of, wait_until_told

import ciranda.torch as cr
from ciranda.torch import ps

FIRST, _, END = os.environ.get("START_SEEDS", "0:4").partition(":")
LIMIT_S = 30  # for servers to show up (CIRANDA_START_TIMEOUT_SECONDS)


def three_steps() -> list[Any]:
    cr.init()
    parameter, optimizer = make("async")
    for _ in range(3):
        step(parameter, optimizer)
    mark(f"trained-{os.environ['CIRANDA_LIFE']}")
    wait_until_told("done")
    servers = ps.stats()["servers"]
    return [(each["version"], sum(w["pushes"] for w in each["workers"])) for each in servers]


def starts_under_kills(seed: int) -> None:
    draw = random.Random(seed)
    lives = [1, 1]
    with start_ranks(three_steps, 2, servers=2, durability="log") as job:
        for _ in range(draw.randint(1, 5)):
            time.sleep(draw.choice((0.01, 0.1, 0.5)) * draw.random())
            victim = draw.randrange(2)
            if draw.random() < 0.5:
                job.kill_server(victim)
            else:
                job.processes[victim].kill()
                job.start_again(victim)
                lives[victim] += 1
        for rank, life in enumerate(lives):
            job.wait_for_mark(rank, f"trained-{life}", LIMIT_S)
        job.tell("done")
        for versions in values_of(job.wait()):
            assert all(version == pushes >= 6 for version, pushes in versions), versions


@pytest.mark.parametrize("seed", range(int(FIRST), int(END)))
def test_a_job_starts_whoever_is_killed_meanwhile(seed: int) -> None:
    starts_under_kills(seed)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_a_thousand_jobs_start() -> None:
    for seed in range(1_000):
        print("seed", seed)
        starts_under_kills(seed)


def waits_for_worker_0() -> None:
    if os.environ["CIRANDA_RANK"] == "0":
        mark("late")
        wait_until_told("said")
    cr.init()
    step(*make("async"))


def test_who_waits_says_for_whom() -> None:
    of_server = (
        r"ciranda-ps: server 0 has waited \d+ s for worker 0, whose parameters are the first"
    )
    of_worker = r"ciranda: worker 1 has waited \d+ s for server 0 to have the first parameters"
    with start_ranks(waits_for_worker_0, 2, servers=1) as job:
        job.wait_for_mark(0, "late")
        deadline = time.monotonic() + 50
        while not re.search(of_server, job.server_said(0)) or not re.search(
            of_worker, job.stderr(1)
        ):
            assert time.monotonic() < deadline, job.server_said(0) + job.stderr(1)
            time.sleep(0.1)
        job.tell("said")
        values_of(job.wait())
