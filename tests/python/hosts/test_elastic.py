"""Elastic training on several hosts: breaks when a step or a sample is lost or counts twice, when
the parameters are not those of a quiet run, or when ranks of a lost host go on by themselves."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from on_hosts import start_job

from ciranda.netns.network import Network

SAMPLES, BATCH, PASSES, AT = 62, 4, 2, 4
LIMIT_S = 80.0
PROGRAM = f"""
import hashlib, json, os, signal, time
import torch
import ciranda.torch as hvd
from ciranda import _C
from ciranda.torch import elastic
from torch.utils.data import DataLoader, TensorDataset

own = int(os.environ["CIRANDA_INCARNATION"])
what = os.environ["WHAT"]
log = open(f"deals-{{own}}", "w", buffering=1)

def meddle(block):
    if block != {AT} or _C.own_epoch() > 1:
        return
    if what == "kill" and hvd.rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "leave" and hvd.rank() == 0:
        agent = open(f"/proc/{{os.getppid()}}/stat").read().rpartition(")")[2].split()[1]
        os.kill(int(agent), signal.SIGTERM)
    if what in ("crash", "cut", "return", "apart") and hvd.cross_rank() == 0:
        open(f"there-{{own}}", "w").close()
        while not os.path.exists("cut"):
            time.sleep(0.01)

while own == 4 and what == "kill" and not all(map(os.path.exists, ("began-1", "began-2"))):
    time.sleep(0.01)  # it is the spare
hvd.init()
torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
).double()
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters(), max_grad_norm=1.0,
    shared_step="host" if what == "cut" else "auto")
data = torch.randn({SAMPLES}, 8, dtype=torch.float64)
loader = DataLoader(TensorDataset(torch.arange({SAMPLES}), data), {BATCH}, shuffle=True)
state = elastic.TorchState(model, optimizer)
for number in range({PASSES} if what not in ("return", "leave", "apart") else 100_000):
    if what == "return" and number > 1 and elastic.agreed(hvd.size) == 4:
        break  # the host is back
    if what in ("leave", "apart") and number > 1 and elastic.agreed(hvd.size) == 2:
        break
    for step in elastic.steps(loader, state):
        block, epoch = step.number, _C.own_epoch()
        open(f"began-{{own}}", "w").close()
        with step as (ids, x):
            log.write(json.dumps(["deal", block, epoch, ids.tolist()]) + "\\n")
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            meddle(block)
            optimizer.step()
        if step.done:
            log.write(json.dumps(["done", block, epoch, hvd.size()]) + "\\n")
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
result = {{"rank": hvd.rank(), "size": hvd.size(), "digest": digest.hexdigest()}}
open(f"result-{{own}}", "w").write(json.dumps(result))
"""


class Job:
    """A job of four ranks on node0 and node1, started on one of the hosts."""

    def __init__(self, network: Network, folder: Path, on: int, what: str, *options: str) -> None:
        self.folder = folder
        self.launcher = start_job(
            network.hosts[on],
            folder,
            PROGRAM,
            *options,
            "-x",
            f"WHAT={what}",
            output=subprocess.PIPE,
        )

    def wait_for(self, *names: str) -> None:
        give_up = time.monotonic() + LIMIT_S
        while not all((self.folder / name).exists() for name in names):
            assert self.launcher.poll() is None and time.monotonic() < give_up, self.output()
            time.sleep(0.02)

    def output(self) -> str:
        try:
            return str(self.launcher.communicate(timeout=LIMIT_S)[0])
        except subprocess.TimeoutExpired:
            self.launcher.terminate()
            raise AssertionError(self.launcher.communicate(timeout=LIMIT_S)[0]) from None

    def end(self) -> tuple[str, list[dict[str, Any]]]:
        output = self.output()
        assert self.launcher.returncode == 0, output
        return output, [json.loads(each.read_text()) for each in self.folder.glob("result-*")]

    def check_samples(self, *incarnations: int) -> None:
        """The blocks that count for these have each sample once in each pass."""
        deals = {
            int(each.name.removeprefix("deals-")): [
                json.loads(line) for line in each.read_text().splitlines()
            ]
            for each in self.folder.glob("deals-*")
        }
        own = [each for incarnation in incarnations for each in deals[incarnation]]
        done = {(block, epoch) for what, block, epoch, _ in own if what == "done"}
        assert len({block for block, _ in done}) == len(done), "a block counted twice"
        counts: Counter[int] = Counter()
        for what, block, epoch, ids in (each for its in deals.values() for each in its):
            if what == "deal" and (block, epoch) in done:
                counts.update(ids)
        passes = counts[0]
        assert passes >= PASSES
        assert counts == Counter({each: passes for each in range(SAMPLES)})


@pytest.fixture
def network(make_network: Callable[..., Any]) -> Any:
    return make_network(2, addresses=("ipv4",), ssh=True)


def test_a_spare_takes_the_place_of_a_rank_on_another_host(network: Any, tmp_path: Path) -> None:
    options = ("-np", "3", "--min-np", "3")
    _, quiet = Job(network, tmp_path / "quiet", 0, "-", "-H", "node0:1,node1:2", *options).end()
    assert len(quiet) == 3 and len({each["digest"] for each in quiet}) == 1
    options = ("-H", "node0:1,node1:3", *options, "--spares", "1", "--reset-limit", "0")
    job = Job(network, tmp_path / "kill", 0, "kill", *options)
    output, results = job.end()
    assert {each["digest"] for each in results} == {quiet[0]["digest"]}
    assert {each["size"] for each in results} == {3}
    job.check_samples(1, 2, 4)
    assert "rank 2 was killed by SIGKILL" in output, output
    assert re.search(r"3 ranks go on after [0-9.]+ s at step 4", output), output


@pytest.mark.parametrize("how", ["crash", "cut"])
def test_the_others_go_on_without_the_host_of_rank_0(
    network: Any, tmp_path: Path, how: str
) -> None:
    options = ("-H", "node0:2,node1:2", "--min-np", "2", *(["--tls"] if how == "crash" else []))
    job = Job(network, tmp_path / how, 1, how, *options)
    job.wait_for("there-1", "there-2")
    lost = network.hosts[0]
    if how == "crash":
        lost.crash()
    else:
        network.unplug(lost)
        (job.folder / "cut").touch()
    output, results = job.end()
    assert re.search(
        r"host node0 was lost: [^;]*; 2 ranks go on after [0-9.]+ s at step 4", output
    ), output
    assert [each["size"] for each in results] == [2, 2]
    assert results[0]["digest"] == results[1]["digest"]
    job.check_samples(3, 4)
    if how == "cut":  # its agent has ended its ranks
        assert "in an elastic job on several hosts each rank makes the whole step" in output
        assert lost.run(["pgrep", "-f", "rank[.]py"]).stdout == ""
        assert not any((job.folder / f"result-{each}").exists() for each in (1, 2))


def test_a_host_that_was_cut_off_comes_back(network: Any, tmp_path: Path) -> None:
    cooldown = ("--blacklist-cooldown-range", "1", "60")
    options = ("-H", "node0:2,node1:2", "--min-np", "2", "--max-np", "4", *cooldown)
    job = Job(network, tmp_path / "job", 1, "return", *options)
    job.wait_for("there-1", "there-2")
    lost = network.hosts[0]
    network.unplug(lost)
    (job.folder / "cut").touch()
    time.sleep(4)  # the agent's lease and more
    network.plug(lost)
    output, results = job.end()
    assert re.search(r"host node0 was lost: [^;]*; 2 ranks go on after [0-9.]+ s", output), output
    assert re.search(r"host node0 is back\n", output), output
    assert re.search(r"back to 4 ranks after [0-9.]+ s", output), output
    assert [each["size"] for each in results] == [4] * 4
    assert len({each["digest"] for each in results}) == 1
    job.check_samples(3, 4)


def test_a_host_that_leaves_costs_no_step(network: Any, tmp_path: Path) -> None:
    options = ("-H", "node0:2,node1:2", "--min-np", "2", "--blacklist-cooldown-range", "60", "60")
    job = Job(network, tmp_path / "job", 1, "leave", *options)
    output, results = job.end()
    said = [line for line in output.splitlines() if line.startswith("ciranda: ")]
    leaves, go_on = said
    assert leaves == "ciranda: host node0 leaves: its agent got SIGTERM"
    assert re.fullmatch(r"ciranda: 2 ranks go on at step [0-9]+", go_on), output
    assert [each["size"] for each in results] == [2, 2]
    assert len({each["digest"] for each in results}) == 1
    job.check_samples(3, 4)


@pytest.mark.parametrize("ways", [1, 2])
def test_one_of_two_hosts_that_do_not_reach_each_other_is_given_up(
    make_network: Callable[..., Any], tmp_path: Path, ways: int
) -> None:
    network = make_network(3, addresses=("ipv4",), ssh=True)
    options = ("-H", "node0:2,node1:2", "--min-np", "2", "--blacklist-cooldown-range", "60", "60")
    job = Job(network, tmp_path / "job", 2, "apart", *options)
    job.wait_for("there-1", "there-2")
    one, other, _ = network.hosts
    network.cut(one, other)
    if ways == 2:
        network.cut(other, one)
    (job.folder / "cut").touch()
    output, results = job.end()
    lost = r"host node1 was lost: host node0 cannot reach it; 2 ranks go on after [0-9.]+ s at step"
    assert re.search(lost, output), output
    assert [each["size"] for each in results] == [2, 2]
    assert len({each["digest"] for each in results}) == 1
    job.check_samples(1, 2)
    assert other.run(["pgrep", "-f", "rank[.]py"]).stdout == ""
