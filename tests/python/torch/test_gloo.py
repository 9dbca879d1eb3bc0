"""Gloo as a backend, beside the Gloo of torch.distributed: breaks when the two in one process mix
up their symbols, or when a rank that dies leaves the others waiting."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from backends import GLOO
from ranks import mark, run_ranks, start_ranks, values_of

ORDERS = {
    "torch's first": "import torch.distributed as dist\nimport ciranda.torch as hvd\n",
    "ours first": "import ciranda.torch as hvd\nimport torch.distributed as dist\n",
}
# Both reduce in turns, also while the other has connections and threads.
TURNS = """
import torch
from ranks import report

def start_torch():
    dist.init_process_group("gloo", init_method="file://{store}", rank={rank}, world_size=2)

def sums():
    ours, torchs = torch.full((300_000,), {rank} + 1.0), torch.full((300_000,), {rank} + 1.0)
    hvd.allreduce_(ours, op=hvd.Sum)
    dist.all_reduce(torchs)
    return [ours.unique().tolist(), torchs.unique().tolist()]

{starts}
found = [sums() for _ in range(3)]
dist.destroy_process_group()
found.append(hvd.allreduce(torch.ones(5), op=hvd.Sum).tolist())
hvd.shutdown()
with open("/proc/self/maps") as maps:
    report([found, "libcgloo.so" in maps.read()])
"""


@pytest.fixture(autouse=True)
def gloo() -> None:
    missing = GLOO.missing()
    if missing:
        pytest.skip(missing)


@pytest.mark.parametrize("order", ORDERS)
def test_it_reduces_in_one_process_with_torchs_own(order: str, tmp_path: Path) -> None:
    starts = ["start_torch()", "hvd.init()"]
    if order == "ours first":
        starts.reverse()
    source = TURNS.format(
        store=tmp_path / "store", rank="int(os.environ['CIRANDA_RANK'])", starts="\n".join(starts)
    )
    results = run_ranks("import os\n" + ORDERS[order] + source, 2, env=GLOO.variables, fresh=True)
    for found, loaded in values_of(results):
        assert found == [*[[[3.0], [3.0]]] * 3, [2.0] * 5]
        assert loaded


def reduce_until_a_rank_dies() -> str:
    import torch

    import ciranda.torch as hvd
    from ciranda.errors import RankLostError

    hvd.init()
    tensor = torch.ones(1_000_000)
    hvd.allreduce_(tensor, op=hvd.Sum)
    mark("reduced")
    try:
        while True:
            hvd.allreduce_(tensor, op=hvd.Sum)
    except RankLostError as error:
        return str(error)


def test_a_killed_rank_ends_the_others_with_its_name() -> None:
    with start_ranks(reduce_until_a_rank_dies, 3, env=GLOO.variables) as job:
        for rank in range(3):
            job.wait_for_mark(rank, "reduced")
        os.kill(job.processes[2].pid, signal.SIGKILL)
        results = job.wait()
    for result in results[:2]:
        assert result.exit_code == 0, result.stderr
        assert "rank 2" in result.value
