"""Joining and leaving: who started the ranks, init and shutdown again and again, nothing left
behind, no CPU time while nothing happens, and how the interpreter ends."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import mark, run_ranks, start_ranks, values_of

import ciranda.torch as hvd
from ciranda import _C


def places() -> list[Any]:
    hvd.init()
    total = hvd.allreduce(torch.tensor([hvd.rank()]), op=hvd.Sum).item()
    place = [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()]
    return [_C.starter(), *place, hvd.cross_rank(), hvd.cross_size(), total]


def trains_one_step() -> list[float]:
    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(64, 64)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    model(torch.full((2, 64), float(hvd.rank()))).sum().backward()
    optimizer.step()
    return [parameter.sum().item() for parameter in model.parameters()]


def test_sixteen_ranks_on_few_cores_start_and_agree() -> None:
    ranks = values_of(run_ranks(trains_one_step, 16))
    assert ranks == [ranks[0]] * 16


def test_without_a_launcher_there_is_one_rank() -> None:
    assert values_of(run_ranks(places, 1, place=False)) == [["none", 0, 1, 0, 1, 0, 1, 0]]


def begins_without_descriptors() -> list[str]:
    os.closerange(0, 3)
    hvd.init()
    hvd.allreduce(torch.ones(100_000))
    return [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]


def test_no_socket_becomes_a_standard_stream() -> None:
    ranks = values_of(run_ranks(begins_without_descriptors, 2))
    assert ranks == [["/dev/null"] * 3] * 2


@pytest.mark.parametrize(
    ("hosts", "place", "expected"),
    [
        ([[0, 1], [2, 3]], (1, 1), (True, 1, 2)),
        ([[0], [1, 2], [3, 4]], (1, 1), (False, 0, 2)),  # host 0 has no second rank
        ([[0], [1, 2], [3, 4]], (0, 2), (False, 2, 3)),
        ([[0]], (0, 0), (True, 0, 1)),
    ],
)
def test_hosts_with_different_numbers_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
    hosts: list[list[int]],
    place: tuple[int, int],
    expected: tuple[bool, int, int],
) -> None:
    local_rank, host = place
    monkeypatch.setattr(_C, "hosts", lambda: hosts)
    monkeypatch.setattr(_C, "local_rank", lambda: local_rank)
    monkeypatch.setattr(_C, "cross_rank", lambda: host)
    assert (hvd.is_homogeneous(), hvd.cross_rank(), hvd.cross_size()) == expected


STARTERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"),
    "horovodrun": (
        "HOROVOD_RANK",
        "HOROVOD_SIZE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
    ),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "PMIX_NAMESPACE",
    ),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID"),
    "srun": (
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_JOB_ID",
    ),
}


@pytest.mark.parametrize("starter", STARTERS)
def test_other_launchers_are_understood(starter: str, tmp_path: Path) -> None:
    rank, size, local_rank, local_size, job = STARTERS[starter]

    def place(number: int) -> dict[str, str]:
        return {
            rank: str(number),
            size: "2",
            local_rank: str(number),
            local_size: "2",
            job: f"{os.getpid()}",
            "CIRANDA_JOB_ID": "a",  # in a nursery each rank has a parent of its own
            "XDG_RUNTIME_DIR": str(tmp_path),
        }

    found = values_of(run_ranks(places, 2, env=place, place=False))
    assert found == [[starter, number, 2, number, 2, 0, 1, 1] for number in range(2)]
    assert list(tmp_path.iterdir()) == [], "the job folder is gone"


def test_our_own_variables_win_over_the_others() -> None:
    others = {"RANK": "7", "WORLD_SIZE": "9", "OMPI_COMM_WORLD_RANK": "5", "SLURM_PROCID": "1"}
    found = values_of(run_ranks(places, 2, env=others))
    assert [value[:3] for value in found] == [["ciranda", 0, 2], ["ciranda", 1, 2]]


def several_hosts() -> str:
    with pytest.raises(ValueError) as caught:
        hvd.init()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_several_hosts_need_a_key() -> None:
    env = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert values_of(run_ranks(several_hosts, 1, env=env, place=False)) == [
        "InvalidArgumentError: ranks on several hosts need the job's key: make a key with "
        "`ciranda key FILE`, copy FILE to every host, and set CIRANDA_KEY_FILE=FILE for all "
        "ranks; or start the ranks with `ciranda run`"
    ]


def init_and_shutdown_twice() -> None:
    hvd.init()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_init_and_shutdown_twice(size: int) -> None:
    values_of(run_ranks(init_and_shutdown_twice, size))


def worlds_without_a_pause() -> int:
    for _ in range(60):
        hvd.init()
        hvd.shutdown()
    return hvd.size() if hvd.is_initialized() else 0


def test_worlds_follow_each_other_without_a_pause() -> None:
    assert values_of(run_ranks(worlds_without_a_pause, 4)) == [0] * 4


def resources() -> list[int]:
    memory = Path("/proc/self/status").read_text()
    return [
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
        Path("/proc/self/maps").read_text().count("memfd:"),
        int(re.search(r"VmRSS:\s+(\d+) kB", memory)[1]),  # type: ignore[index]
    ]


def a_hundred_worlds() -> list[list[int]]:
    from ciranda.torch import ops

    found = []
    for i in range(100):
        hvd.init()
        name = f"step.{i}"
        assert hvd.allreduce(torch.tensor([i]), name=name, op=hvd.Sum).item() == 2 * i
        ops.arena_allreduce_(ops.arena_empty([1000]).fill_(1.0))
        hvd.shutdown()
        if i in (9, 99):
            found.append(resources())
    return found


def test_a_hundred_worlds_leak_nothing() -> None:
    for early, late in values_of(run_ranks(a_hundred_worlds, 2)):
        assert early[:3] == late[:3], "descriptors, threads, mappings"
        assert late[3] - early[3] < 8 * 1024, "KiB of memory"


def thousands_of_buckets() -> list[int]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    hvd.init()
    found = []
    for _ in range(2):
        weights = [torch.nn.Parameter(torch.ones(16)) for _ in range(3000)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), bucket_bytes=64)
        torch.cat(weights).mul(hvd.rank()).sum().backward()
        optimizer.step()
        assert all(torch.equal(weight, torch.full((16,), 0.5)) for weight in weights)
        found.append(resources())
    descriptors, threads, mappings, _ = found[1]
    assert found[0][:2] == [descriptors, threads]
    return [descriptors, mappings]


def test_thousands_of_buckets_need_few_descriptors_and_mappings() -> None:
    for descriptors, mappings in values_of(run_ranks(thousands_of_buckets, 2)):
        assert descriptors <= 64
        assert mappings <= 1000


def synchronized_handles() -> list[bool]:
    hvd.init()
    tensor = torch.ones(1000)
    kept = weakref.ref(tensor)
    handle = hvd.allreduce_async_(tensor, name="a")
    del tensor
    before = kept() is None
    hvd.synchronize(handle)
    return [before, kept() is None]


def test_an_operation_keeps_its_tensors_until_it_is_synchronized() -> None:
    assert values_of(run_ranks(synchronized_handles, 2)) == [[False, True]] * 2


def idle() -> float:
    hvd.init()
    hvd.allreduce(torch.ones(1000))
    hvd.barrier()
    time.sleep(0.2)  # the last spin of whoever waited
    begin = time.process_time()
    time.sleep(5)
    return (time.process_time() - begin) * 1000


@pytest.mark.timing
def test_an_idle_world_uses_no_cpu_time() -> None:
    with (
        start_ranks(idle, 2, env={"CIRANDA_OVERLAP": "on"}) as overlapping,
        start_ranks(idle, 2, env={"CIRANDA_OVERLAP": "off"}) as plain,
    ):
        for job in (overlapping, plain):
            for spent_ms in values_of(job.wait()):
                assert spent_ms < 5


def waiting() -> float:
    hvd.init()
    begin = time.process_time()
    if hvd.rank() == 0:
        time.sleep(1.5)
    hvd.allreduce(torch.ones(10))
    return (time.process_time() - begin) * 1000


@pytest.mark.timing
def test_a_blocked_rank_sleeps() -> None:
    for spent_ms in values_of(run_ranks(waiting, 2)):
        assert spent_ms < 30


# --- what a job shows to the outside -------------------------------------------------------------


def tcp_inodes() -> set[str]:
    """Inodes of every TCP socket of this network namespace."""
    rows = []
    for table in ("tcp", "tcp6"):
        rows += Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
    return {row.split()[9] for row in rows}


def own_sockets(pid: int) -> set[str]:
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link))
        if match:
            found.add(match[1])
    return found


def stay() -> None:
    from ciranda.torch import ops

    hvd.init()
    tensor = ops.arena_empty([1 << 20]).fill_(1.0)
    ops.arena_allreduce_(tensor)
    hvd.allreduce(torch.ones(1 << 20))
    mark("working")
    while True:
        hvd.allreduce(torch.ones(1 << 16))


def files_in_shared_memory() -> set[str]:
    """Those that look like ours: other programs have some too."""
    return {name for name in os.listdir("/dev/shm") if "ciranda" in name}


def memfds_of(pid: int) -> set[int]:
    """Inodes of the process's memory files, open or only mapped."""
    links = [link for link in Path(f"/proc/{pid}/fd").iterdir() if "memfd:" in os.readlink(link)]
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    mapped = {int(row.split()[4]) for row in maps if "/memfd:" in row}
    return mapped | {link.stat().st_ino for link in links}


def all_memfds() -> set[int]:
    found = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                found |= memfds_of(int(process.name))
    return found


def test_no_tcp_port_and_nothing_left_after_kill_9() -> None:
    with start_ranks(stay, 3) as job:
        for rank in range(3):
            job.wait_for_mark(rank, "working")
        assert list(job.job_dir.iterdir()) == [], "the start-up socket is unlinked"
        memory = memfds_of(job.processes[0].pid)
        assert len(memory) >= 2, "control block and arena"
        assert memory <= all_memfds()
        for process in job.processes:
            sockets = own_sockets(process.pid)
            assert sockets, "Unix sockets to the other ranks"
            assert not sockets & tcp_inodes()
        for process in job.processes:
            process.kill()
        for process in job.processes:
            process.wait(10)
        assert list(job.job_dir.iterdir()) == []
        assert not memory & all_memfds()
    assert not files_in_shared_memory()


# --- the end of the interpreter ------------------------------------------------------------------

END = """
import sys, threading, time
import torch
import ciranda.torch as hvd

hvd.init()
hvd.allreduce(torch.ones(10))
handles = [hvd.allreduce_async(torch.ones(10)) for _ in range(3)]
ending = {ending!r}
if ending == "pending":
    if hvd.rank() == 0:
        hvd.allreduce_async(torch.ones(10), name="nobody else")
        hvd.broadcast_async(torch.ones(1 << 20), 0, name="big")
elif ending == "thread":
    def wait():
        hvd.allreduce(torch.ones(1), name="never")
    if hvd.rank() == 0:
        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.2)
elif ending == "optimizer":
    model = torch.nn.Linear(4, 4)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(2, 4)).sum().backward()
report("end")
if ending == "optimizer":
    sys.exit(7 + hvd.rank())
"""


@pytest.mark.parametrize(
    ("ending", "codes"),
    [("pending", [0, 0]), ("thread", [0, 0]), ("optimizer", [7, 8])],
)
def test_the_interpreter_ends_with_its_own_exit_code(ending: str, codes: list[int]) -> None:
    results = run_ranks(END.format(ending=ending), 2, fresh=True)
    assert [result.exit_code for result in results] == codes, results
    assert [result.value for result in results] == ["end", "end"]
    if ending != "thread":  # that one may tell how its allreduce ended
        assert [result.stderr for result in results] == ["", ""]


def test_a_socket_that_lies_in_the_way_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir(mode=0o700)
    (tmp_path / "job" / "local").write_text("from a job that was killed while it started")
    values_of(run_ranks(places, 2, env={"CIRANDA_JOB_DIR": str(tmp_path / "job")}))


def refused_folder() -> str:
    with pytest.raises(ValueError) as caught:
        hvd.init()
    return str(caught.value)


def test_a_folder_that_others_can_open_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    place = {"CIRANDA_JOB_DIR": str(tmp_path), "CIRANDA_START_TIMEOUT_SECONDS": "2"}
    (found,) = values_of(
        run_ranks(refused_folder, 1, env={**place, "CIRANDA_SIZE": "2"}, place=True)
    )
    assert found == (
        f"the job folder {tmp_path} is not a private directory of this user; remove it, or give "
        "it mode 0700"
    )
