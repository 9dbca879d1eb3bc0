"""Ranks started by hand, as DDP's tutorial does: RANK, WORLD_SIZE and a fixed MASTER_PORT. What
could break: two jobs with one port that exchange ranks, one job whose ranks do not meet, and
processes that wait in vain because they are no ranks, or not on this host."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import clean_environment

import ciranda
from ciranda.measure.hosts import make_key
from ciranda.measure.sides import free_port

RANK = """
import os, sys, time
import ciranda.torch as hvd

job, marks = sys.argv[1], sys.argv[2]

def mark(name):
    open(f"{marks}/{name}", "w").close()

def wait_for(name):
    while not os.path.exists(f"{marks}/{name}"):
        time.sleep(0.01)

wait_for(f"go-{job}-{os.environ['RANK']}")
try:
    hvd.init()
except Exception as error:
    print("refused:", error)
    mark(f"refused-{job}-{os.environ['RANK']}")
    sys.exit(7)
if "CIRANDA_PS" in os.environ:
    print("entered")
else:
    print("with", hvd.allgather_object(job), flush=True)
mark(f"met-{job}-{os.environ['RANK']}")
wait_for("end")
"""


class ByHand:
    """Starts ranks of jobs, and lets them begin in an order."""

    def __init__(self, folder: Path, runtime_dir: str) -> None:
        self.folder = folder
        self.script = folder / "rank.py"
        self.script.write_text(RANK)
        self.environment = clean_environment() | {
            "XDG_RUNTIME_DIR": runtime_dir,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "WORLD_SIZE": "2",
            "CIRANDA_START_TIMEOUT_SECONDS": "20",
        }
        self.ranks: dict[tuple[str, int], subprocess.Popen[str]] = {}

    def start(self, job: str, rank: int, word: str = "", wrapped: bool = False) -> None:
        """`word`: by which the command tells its job; `wrapped`: a shell of its own starts it."""
        command = [sys.executable, str(self.script), word or job, str(self.folder)]
        if wrapped:
            command = ["sh", "-c", f'RANK={rank} "$@"; exit $?', "sh", *command]
        environment = self.environment if wrapped else {**self.environment, "RANK": str(rank)}
        self.ranks[job, rank] = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def go(self, job: str, rank: int, until: str) -> None:
        (self.folder / f"go-{job}-{rank}").touch()
        if until:
            self.wait_for(until)

    def wait_for(self, mark: str) -> None:
        deadline = time.monotonic() + 60
        while not (self.folder / mark).exists():
            assert time.monotonic() < deadline, mark
            time.sleep(0.01)

    def end(self) -> dict[tuple[str, int], str]:
        """What each of them said."""
        (self.folder / "end").touch()
        return {which: rank.communicate(timeout=60)[0] for which, rank in self.ranks.items()}


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[ByHand]:
    runtime_dir = tempfile.mkdtemp(prefix="ct-")
    hand = ByHand(tmp_path, runtime_dir)
    try:
        yield hand
    finally:
        for rank in hand.ranks.values():
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()
        left = os.listdir(runtime_dir)
        shutil.rmtree(runtime_dir)
    assert left == [], "the job's folder was left behind"


def test_two_jobs_with_one_port_do_not_exchange_ranks(by_hand: ByHand) -> None:
    """Rank 1 of the second job comes first, when rank 0 of the first waits."""
    for job in ("A", "B"):
        for rank in (0, 1):
            by_hand.start(job, rank)
    by_hand.go("A", 0, until="")
    by_hand.go("B", 1, until="refused-B-1")
    by_hand.go("A", 1, until="met-A-0")
    by_hand.go("B", 0, until="refused-B-0")
    said = by_hand.end()
    assert said["A", 0] == said["A", 1] == "with ['A', 'A']\n"
    assert "rank 1 (pid" in said["B", 1]
    assert "was started by another command than rank 0" in said["B", 1]
    assert "give each job its own MASTER_PORT" in said["B", 1]
    assert "another process is already rank 0" in said["B", 0]


@pytest.fixture
def a_server(by_hand: ByHand) -> Iterator[subprocess.Popen[str]]:
    key = str(make_key(by_hand.folder))
    endpoint = f"127.0.0.1:{free_port()}"
    by_hand.environment |= {"CIRANDA_PS": endpoint, "CIRANDA_KEY_FILE": key}
    command = [str(Path(ciranda.__file__).parent / "bin" / "ciranda-ps"), "--workers", "2"]
    with subprocess.Popen(
        [*command, "--listen", endpoint, "--key-file", key],
        env=by_hand.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            yield server
        finally:
            server.kill()


def test_two_jobs_with_one_server_do_not_exchange_workers(
    by_hand: ByHand, a_server: subprocess.Popen[str]
) -> None:
    """Neither beside a worker of the other job, nor in its place."""
    for job in ("A", "B"):
        for rank in (0, 1):
            by_hand.start(job, rank, wrapped=job == "B")
    by_hand.go("A", 0, until="met-A-0")
    by_hand.go("B", 1, until="refused-B-1")
    by_hand.go("B", 0, until="refused-B-0")
    by_hand.go("A", 1, until="met-A-1")
    said = by_hand.end()
    assert said["A", 0] == said["A", 1] == "entered\n"
    for rank in (0, 1):
        assert f"worker {rank} seems to belong to another job than worker 0" in said["B", rank]
        assert "set CIRANDA_JOB_ID to the same name for all its workers" in said["B", rank]
    assert a_server.wait(timeout=60) == 0  # all of A have left


def test_ranks_of_two_shells_are_one_job_where_they_say_so(by_hand: ByHand) -> None:
    for rank in (0, 1):
        by_hand.start("A", rank, wrapped=True)
    by_hand.go("A", 0, until="")
    by_hand.go("A", 1, until="refused-A-1")
    assert "started by another process (sh, pid" in by_hand.ranks["A", 1].communicate(timeout=60)[0]
    by_hand.environment["CIRANDA_JOB_ID"] = "ours"
    os.killpg(by_hand.ranks["A", 0].pid, signal.SIGKILL)
    by_hand.ranks["A", 0].communicate(timeout=60)
    (by_hand.folder / "refused-A-1").unlink()
    for rank in (0, 1):
        by_hand.start("A", rank, wrapped=True)
    by_hand.wait_for("met-A-0")
    said = by_hand.end()
    assert said["A", 0] == said["A", 1] == "with ['A', 'A']\n"
    for folder in Path(by_hand.environment["XDG_RUNTIME_DIR"]).iterdir():
        assert os.listdir(folder) == ["local"]  # of rank 0 that was killed
        shutil.rmtree(folder)
