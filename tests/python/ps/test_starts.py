"""Servers and workers are killed at each point of a start: breaks when it stands still or fails."""

from __future__ import annotations

import ctypes
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from ps.counting import make, step
from ranks import Job, mark, start_ranks, values_of, wait_until_told

import ciranda.torch as cr
from ciranda.torch import ps

FIRST, _, END = os.environ.get("START_SEEDS", "0:6").partition(":")
LIMIT_S = 30  # for servers to show up (CIRANDA_START_TIMEOUT_SECONDS)
# Calls that killed_at.c counts, in a start, three steps and an end: 92 and some 40.
POINTS = {"server": 95, "worker": 45}


@pytest.fixture(scope="module")
def killed_at(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("preload") / "killed_at.so"
    source = Path(__file__).with_name("killed_at.c")
    subprocess.run(
        [os.environ.get("CC", "gcc"), "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"],
        check=True,
    )
    return str(library)


def three_steps() -> list[Any]:
    killed_at = ctypes.CDLL(None).killed_at
    killed_at(ctypes.c_long(int(os.environ.get("KILLED_AT", "0"))))
    cr.init()
    parameter, optimizer = make("async")
    for _ in range(3):
        step(parameter, optimizer)
    killed_at(ctypes.c_long(0))
    mark(f"trained-{os.environ['CIRANDA_LIFE']}")
    wait_until_told("done")
    servers = ps.stats()["servers"]
    return [(each["version"], sum(w["pushes"] for w in each["workers"])) for each in servers]


def starts_under_kills(seed: int, preload: str) -> None:
    """One to three processes end at a call of their start, each life at another one."""
    draw = random.Random(seed)
    kills: dict[tuple[str, int], list[int]] = {}
    for _ in range(draw.randint(1, 3)):
        role = draw.choice(list(POINTS))
        kills.setdefault((role, draw.randrange(2)), []).append(draw.randint(1, POINTS[role]))

    def next_kill(role: str, number: int) -> dict[str, str]:
        points = kills.get((role, number))
        return {"KILLED_AT": str(points.pop())} if points else {}

    lives = [1, 1]

    def revive(job: Job) -> None:
        for server, process in enumerate(job.servers):
            if process.poll() not in (None, 0):
                assert process.poll() == -signal.SIGKILL, job.server_said(server)
                job.kill_server(server)
        for rank, process in enumerate(job.processes):
            if process.poll() not in (None, 0):
                assert process.poll() == -signal.SIGKILL, job.stderr(rank)
                job.start_again(rank)
                lives[rank] += 1

    with start_ranks(
        three_steps,
        2,
        env=lambda rank: next_kill("worker", rank),
        servers=2,
        server_env=lambda server: next_kill("server", server),
        durability="log",
        preload=preload,
    ) as job:
        deadline = time.monotonic() + 2 * LIMIT_S
        while not all(job.has_marked(rank, f"trained-{life}") for rank, life in enumerate(lives)):
            assert time.monotonic() < deadline, [job.stderr(0), job.stderr(1), kills]
            revive(job)
            time.sleep(0.01)
        job.tell("done")
        while any(process.poll() is None for process in job.processes):
            assert time.monotonic() < deadline, [job.stderr(0), job.stderr(1), kills]
            revive(job)
            time.sleep(0.01)
        for versions in values_of(job.wait()):
            assert all(version == pushes >= 6 for version, pushes in versions), versions


@pytest.mark.parametrize("seed", range(int(FIRST), int(END)))
def test_a_job_starts_whoever_is_killed_at_whatever_call(seed: int, killed_at: str) -> None:
    starts_under_kills(seed, killed_at)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_a_thousand_jobs_start(killed_at: str) -> None:
    for seed in range(1_000):
        print("seed", seed)
        starts_under_kills(seed, killed_at)


def waits_for_worker_0() -> None:
    if os.environ["CIRANDA_RANK"] == "0":
        mark("late")
        wait_until_told("said")
    cr.init()
    step(*make("async"))


def test_who_waits_says_for_whom() -> None:
    of_server = (
        r"ciranda-ps: server 0 has waited \d+ s for worker 0, whose parameters the servers begin "
        "with"
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
