"""Elastic training on bad networks, for minutes: breaks when two worlds both go on, when a sample
is lost or counts twice, when a job does not come to itself again, or a host is given up that is
there."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from on_hosts import start_job

from ciranda.netns.link import Link
from ciranda.netns.network import Network

CUTS = int(os.environ.get("CIRANDA_CUTS", "10"))
BAD_S = float(os.environ.get("CIRANDA_BAD_LINE_S", "60"))
SAMPLES = 62
LIMIT_S = 120.0
PROGRAM = f"""
import hashlib, json, os, time
import torch
import ciranda.torch as cr
from ciranda import _C
from ciranda.torch import elastic
from torch.utils.data import DataLoader, TensorDataset

own = int(os.environ["CIRANDA_INCARNATION"])
log = open(f"log-{{own}}", "w", buffering=1)
cr.init()
torch.manual_seed(1)
model = torch.nn.Linear(8, 1).double()
optimizer = cr.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
data = torch.randn({SAMPLES}, 8, dtype=torch.float64)
loader = DataLoader(TensorDataset(torch.arange({SAMPLES}), data), 4, shuffle=True)
state = elastic.TorchState(model, optimizer)

def write(what, block, epoch, ids):
    row = [what, time.monotonic(), block, epoch, cr.size(), ids.tolist()]
    log.write(json.dumps(row) + "\\n")

passes = 0

def must_stop():
    stop = torch.tensor(float(os.path.exists("stop") or passes == PASSES))
    return bool(cr.allreduce(stop, op=cr.Max).item())

PASSES = int(os.environ.get("PASSES", "-1"))
while not elastic.agreed(must_stop):
    passes += 1
    for step in elastic.steps(loader, state):
        block, epoch = step.number, _C.own_epoch()
        with step as (ids, x):
            write("deal", block, epoch, ids)
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            optimizer.step()
            time.sleep(0.005)
        if step.done:
            write("done", block, epoch, ids)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
open(f"result-{{own}}", "w").write(json.dumps([cr.size(), digest.hexdigest(), passes]))
"""


class Row(NamedTuple):
    """A line of a process: the samples that it got for a block, or that the block counts."""

    what: str
    at: float
    block: int
    epoch: int
    size: int
    samples: list[int]


class Job:
    """Two ranks on each host but the last one, on which it is started."""

    def __init__(self, network: Network, folder: Path, passes: int = -1) -> None:
        self.folder = folder
        self._output = folder.with_name(f"{folder.name}-output")
        *hosts, starter = network.hosts
        options = ["-H", ",".join(f"{each.name}:2" for each in hosts), "--min-np", "2"]
        options += ["--blacklist-cooldown-range", "1", "2", "-x", f"PASSES={passes}"]
        with self._output.open("w") as output:
            self.launcher = start_job(starter, folder, PROGRAM, *options, output=output)

    def output(self) -> str:
        return self._output.read_text()

    def newest(self) -> Row:
        """The newest line of all."""
        lines = [_last_line(each) for each in self.folder.glob("log-*")]
        rows = [Row(*json.loads(each)) for each in lines if each]
        return max(rows, key=lambda row: row.at, default=Row("", 0, 0, 0, 0, []))

    def wait_until_it_trains_on(self, hosts: int) -> None:
        began = time.monotonic()
        while True:
            newest = self.newest()
            if newest.at > began and newest.size >= 2 * hosts:
                return
            assert self.launcher.poll() is None, self.output()
            assert time.monotonic() < began + LIMIT_S, self.output()
            time.sleep(0.1)

    def end(self, *, now: bool = True) -> None:
        if now:
            (self.folder / "stop").touch()
        assert self.launcher.wait(LIMIT_S) == 0, self.output()

    def rows(self) -> list[list[Row]]:
        """What each process has written."""
        logs = [each.read_text().splitlines() for each in self.folder.glob("log-*")]
        return [[Row(*json.loads(line)) for line in lines] for lines in logs]

    def results(self) -> list[Any]:
        return [json.loads(each.read_text()) for each in self.folder.glob("result-*")]


def _last_line(log: Path) -> str:
    lines = log.read_text().split("\n")[:-1]
    return lines[-1] if lines else ""


@contextmanager
def cut(network: Network, how: str, chance: random.Random) -> Iterator[None]:
    one, other = chance.sample(network.hosts[:3], 2)
    if how == "off":
        network.unplug(one)
    if how in ("one way", "both ways"):
        network.cut(one, other)
    if how == "both ways":
        network.cut(other, one)
    try:
        yield
    finally:
        network.plug(one)
        if how in ("one way", "both ways"):
            network.mend(one, other)
        if how == "both ways":
            network.mend(other, one)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_never_two_worlds(make_network: Callable[..., Any], tmp_path: Path) -> None:
    seed = int(os.environ.get("CIRANDA_SEED", "1"))
    chance = random.Random(seed)
    network = make_network(4, addresses=("ipv4",), ssh=True)
    job = Job(network, tmp_path / "job")
    for _ in range(CUTS):
        job.wait_until_it_trains_on(hosts=2)
        how = chance.choice(("off", "one way", "both ways"))
        with cut(network, how, chance):
            time.sleep(chance.choice((chance.uniform(0, 2), chance.uniform(3, 8))))
    job.wait_until_it_trains_on(hosts=3)
    job.end()
    lost = len(re.findall("was lost", job.output()))
    print(f"seed {seed}: {CUTS} cuts, {lost} hosts lost, step {job.newest().block}")
    assert lost > 0
    results = job.results()
    assert len(results) == 6 and len({digest for _, digest, _ in results}) == 1
    check(job.rows())


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_a_bad_line_evicts_nobody(
    make_network: Callable[..., Any], tmp_path: Path, loss: float
) -> None:
    """A round trip takes 50 to 150 ms."""
    chance = random.Random(1)
    network = make_network(3, addresses=("ipv4",), ssh=True, router=True, seed=1)
    job = Job(network, tmp_path / "job")
    job.wait_until_it_trains_on(hosts=2)
    ends = time.monotonic() + BAD_S
    while time.monotonic() < ends:
        for host in network.hosts:
            network.set_link(Link(delay_ms=chance.uniform(25, 75), loss=loss), host)
        assert job.launcher.poll() is None, job.output()
        time.sleep(0.5)
    network.set_link(Link())
    job.end()
    assert "lost" not in job.output(), job.output()
    results = job.results()
    (digest,) = {digest for _, digest, _ in results}
    (passes,) = {passes for _, _, passes in results}
    print(f"loss {loss}: {passes} passes")
    quiet = Job(network, tmp_path / "quiet", passes)
    quiet.end(now=False)
    assert {each for _, each, _ in quiet.results()} == {digest}


def check(processes: list[list[Row]]) -> None:
    """What a process did last, before it was lost, need not count."""
    done = [[row for row in rows if row.what == "done"] for rows in processes]
    last = max(rows[-1].block for rows in done if rows)
    counted: dict[int, int] = {}  # block -> its epoch
    begins: dict[int, float] = {}  # epoch -> when its first block was done
    for rows in done:
        for row in rows:
            begins[row.epoch] = min(begins.get(row.epoch, row.at), row.at)
            if row != rows[-1] or row.block == last:
                assert counted.setdefault(row.block, row.epoch) == row.epoch, row
    assert sorted(counted) == list(range(last + 1))
    for rows in done:
        late = [row for row in rows if _is_late(row, begins)]
        assert len(late) <= 1, f"a world goes on beside a newer one: {late}"
    samples = Counter(
        sample
        for rows in processes
        for row in rows
        if row.what == "deal" and counted.get(row.block) == row.epoch
        for sample in row.samples
    )
    passes = samples[0]
    assert passes > 1
    assert samples == Counter(dict.fromkeys(range(SAMPLES), passes))


def _is_late(row: Row, begins: dict[int, float]) -> bool:
    return any(epoch > row.epoch and at < row.at for epoch, at in begins.items())
