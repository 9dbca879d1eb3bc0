"""The tools of others that start ranks, for real: mpirun, srun and torchrun. What could break: a
variable that the tool does not set, or sets otherwise than its documentation says; ranks of a
second life that meet those of the first.

torch/test_world.py tests the variables of more starters, without the tools."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from ranks import clean_environment
from slurm_cluster import SlurmCluster, skip_where_missing

from ciranda.measure.hosts import make_key
from ciranda.measure.sides import free_port

RANK = """
import json, signal, sys
from pathlib import Path

signal.alarm(60)  # whoever started this rank shall not wait for ever

import torch
import ciranda.torch as hvd
from ciranda import _C

hvd.init()
place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
(Path(sys.argv[1]) / f"{hvd.rank()}.json").write_text(json.dumps([_C.starter(), *place, total]))
hvd.shutdown()
"""


def is_open_mpi() -> bool:
    if shutil.which("mpirun") is None:
        return False
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True)
    return "Open MPI" in version.stdout


needs_open_mpi = pytest.mark.skipif(
    not is_open_mpi(), reason="Open MPI's mpirun is not installed (openmpi-bin)"
)


class Starters:
    """Runs RANK with a command in front, and looks at what the ranks found."""

    def __init__(self, folder: Path, runtime_dir: Path) -> None:
        self.script = folder / "rank.py"
        self.script.write_text(RANK)
        self.folder = folder
        self.runtime_dir = runtime_dir

    def run(self, *command: str, environment: dict[str, str] | None = None) -> list[Any]:
        """`command` with RANK behind it."""
        self.run_as_it_is(*command, str(self.script), str(self.folder), environment=environment)
        return self.found()

    def run_as_it_is(self, *command: str, environment: dict[str, str] | None = None) -> None:
        told = clean_environment() | {"XDG_RUNTIME_DIR": str(self.runtime_dir)}
        told |= environment or {}
        if command[0] == sys.executable:  # torchrun, whose ranks are then warm too
            done = warm.run(command[1:], env=told, cwd=self.folder, timeout=100)
        else:
            done = subprocess.run(
                command,
                env=told,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=100,
            )
        assert done.returncode == 0, done.stdout + done.stderr

    def found(self, folder: str = ".") -> list[Any]:
        paths = sorted((self.folder / folder).glob("*.json"))
        return [json.loads(path.read_text()) for path in paths]


@pytest.fixture
def starters(tmp_path: Path) -> Iterator[Starters]:
    runtime_dir = Path(tempfile.mkdtemp(prefix="ct-"))  # short: a Unix socket will lie in it
    try:
        yield Starters(tmp_path, runtime_dir)
        assert list(runtime_dir.iterdir()) == [], "the job's folder was left behind"
    finally:
        shutil.rmtree(runtime_dir)


def two_ranks_of(starter: str) -> list[Any]:
    return [[starter, rank, 2, rank, 2, 3.0] for rank in range(2)]


def test_torchrun_starts_two_ranks(starters: Starters) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    found = starters.run(*torchrun, "--standalone", "--nproc-per-node", "2")
    assert found == two_ranks_of("torchrun")


# The first life of the job ends when its rank 0 is killed, which owns the ranks' meeting place.
RESTARTED = """
import json, os, signal, sys
from pathlib import Path

signal.alarm(60)

import torch
import ciranda.torch as hvd

hvd.init()
life = os.environ["TORCHELASTIC_RESTART_COUNT"]
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
if life == "0" and hvd.rank() == 0:
    os.kill(os.getpid(), signal.SIGKILL)
if life == "0":
    hvd.barrier()  # raises, because rank 0 is lost
(Path(sys.argv[1]) / f"{hvd.rank()}.json").write_text(json.dumps([life, hvd.size(), total]))
hvd.shutdown()
"""


def test_torchrun_restarts_ranks_that_failed(starters: Starters) -> None:
    starters.script.write_text(RESTARTED)
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    found = starters.run(*torchrun, "--standalone", "--nproc-per-node=2", "--max-restarts=1")
    assert found == [["1", 2, 3.0]] * 2
    for folder in starters.runtime_dir.iterdir():  # of rank 0 that was killed
        shutil.rmtree(folder)


# A rank that is alone waits for torchrun to make one job of it and of the rank that joins.
RESIZED = """
import json, signal, sys, time
from pathlib import Path

signal.alarm(100)

import torch
import ciranda.torch as hvd

folder = Path(sys.argv[1])
hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
(folder / f"{hvd.rank()}-of-{hvd.size()}").touch()
while hvd.size() == 2 or not (folder / "0-of-2").exists():
    hvd.barrier()  # raises when the other rank is lost
    time.sleep(0.05)
(folder / "alone.json").write_text(json.dumps([hvd.rank(), hvd.size(), total]))
hvd.shutdown()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_torchrun_goes_on_with_more_and_with_fewer_ranks(starters: Starters) -> None:
    """Two agents on this host stand for two hosts; the first one has torchrun's store."""
    starters.script.write_text(RESIZED)
    command = ["-m", "torch.distributed.run", "--max-restarts=1"]
    command += ["--nnodes=1:2", "--nproc-per-node=1", "--local-addr=127.0.0.1"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    environment = clean_environment() | {
        "XDG_RUNTIME_DIR": str(starters.runtime_dir),
        "CIRANDA_KEY_FILE": str(make_key(starters.folder)),
        # Without it, torchrun 2.15 waits in vain for an address when an agent has joined.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    agents: list[warm.Process] = []

    def start(is_host: bool) -> None:
        store = f"--rdzv-conf=last_call_timeout=1,is_host={is_host}"
        rank = [str(starters.script), str(starters.folder)]
        agents.append(warm.Process([*command, store, *rank], environment, starters.folder))

    def wait_for(*names: str) -> None:
        deadline = time.monotonic() + 100
        while not all((starters.folder / name).exists() for name in names):
            assert time.monotonic() < deadline and agents[0].poll() is None, agents[0].said()
            time.sleep(0.05)

    try:
        start(is_host=True)
        wait_for("0-of-1")
        start(is_host=False)
        wait_for("0-of-2", "1-of-2")
        agents[1].send_signal(signal.SIGTERM)
        assert agents[0].wait(timeout=100) == 0, agents[0].said()
    finally:
        for agent in agents:
            agent.send_signal(signal.SIGTERM)  # and with it its rank
            agent.wait(timeout=60)
    assert starters.found() == [[0, 1, 1.0]]


@needs_open_mpi
def test_mpirun_starts_two_ranks(starters: Starters) -> None:
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    assert starters.run(*mpirun, sys.executable) == two_ranks_of("mpirun")


SPLIT = """
import json, signal, sys
from pathlib import Path

signal.alarm(60)

import torch
from mpi4py import MPI
import ciranda.torch as hvd

world = MPI.COMM_WORLD
comms = [world, world.Split(world.rank > 0, -world.rank)]
comms.append(world.Create_group(world.group.Incl([0, 1])) if world.rank < 2 else MPI.COMM_NULL)
found = []
for comm in comms:
    try:
        hvd.init(comm=comm)
        members = hvd.allgather(torch.tensor([world.rank])).tolist()
        found.append([hvd.rank(), members])
    except ValueError as error:
        found.append(str(error).partition(";")[0])
    hvd.shutdown()
(Path(sys.argv[1]) / f"{world.rank}.json").write_text(json.dumps(found))
"""


@needs_open_mpi
def test_the_job_is_an_mpi_communicator(starters: Starters) -> None:
    pytest.importorskip("mpi4py")
    starters.script.write_text(SPLIT)
    refused = "init: rank 2 is not in its comm=[]"
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3"]
    assert starters.run(*mpirun, sys.executable) == [
        [[0, [0, 1, 2]], [0, [0]], refused],
        [[1, [0, 1, 2]], [1, [2, 1]], refused],
        [[2, [0, 1, 2]], [0, [2, 1]], refused],
    ]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    skip_where_missing()
    with SlurmCluster() as cluster:
        yield cluster


def test_srun_starts_two_ranks(starters: Starters, slurm: SlurmCluster) -> None:
    found = starters.run("srun", "--ntasks=2", sys.executable, environment=slurm.environment)
    assert found == two_ranks_of("srun")


def test_srun_starts_a_launcher_that_starts_two_ranks(
    starters: Starters, slurm: SlurmCluster
) -> None:
    launcher = (sys.executable, "-m", "ciranda", "run", "--no-ssh", "-np", "2")
    environment = slurm.environment
    found = starters.run("srun", "--ntasks=1", *launcher, environment=environment)
    assert found == two_ranks_of("ciranda")
    with pytest.raises(AssertionError, match="srun has started 2 tasks on 1 node"):
        starters.run("srun", "--ntasks=2", *launcher, environment=environment)


def test_two_steps_of_one_allocation_stay_apart(starters: Starters, slurm: SlurmCluster) -> None:
    """Each has fewer tasks than the allocation, whose variables both inherit."""
    step = f"srun --ntasks=2 --overlap {sys.executable} {starters.script}"
    steps = [f"{step} {starters.folder}/{name} & {name}=$!" for name in ("one", "two")]
    for name in ("one", "two"):
        (starters.folder / name).mkdir()
    starters.run_as_it_is(
        *("salloc", "--ntasks=4", "--ntasks-per-node=4"),
        *("sh", "-c", "\n".join([*steps, "wait $one && wait $two"])),
        environment=slurm.environment,
    )
    assert [starters.found(name) for name in ("one", "two")] == [two_ranks_of("srun")] * 2


def test_a_batch_script_is_no_rank_of_its_steps(starters: Starters, slurm: SlurmCluster) -> None:
    batch, said, ended = (starters.folder / name for name in ("batch.sh", "said", "ended"))
    rank = f"{sys.executable} {starters.script} {starters.folder}"
    batch.write_text(f"#!/bin/sh\n{rank}\ntouch {ended}\n")
    sbatch = ["sbatch", "--ntasks=2", f"--output={said}", str(batch)]
    starters.run_as_it_is(*sbatch, environment=slurm.environment)
    deadline = time.monotonic() + 60
    while not ended.exists():  # sbatch --wait asks every ten seconds only
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)
    slurm.wait_until_idle()
    assert starters.found() == [["none", 0, 1, 0, 1, 1.0]]
