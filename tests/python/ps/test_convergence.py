"""What training with servers reaches in each mode, beside rounds, and what must not reach it."""

from __future__ import annotations

import gzip
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ps import bands
from ranks import mark, run_ranks, start_ranks, values_of, wait_until_told

import ciranda.torch as cr
from ciranda.torch.ps import SSP, Async, Sync, stats

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
LATEST_DEATH = 10  # steps after a worker shall be killed
Kills = list[list[int]]
MODES = {"sync": Sync(), "ssp": SSP(3), "async": Async()}


def read_ubytes(name: str, header: int) -> torch.Tensor:
    content = gzip.decompress((FASHION_MNIST / name).read_bytes())
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).copy())


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fashion-MNIST at a sixteenth of its pixels: 49 numbers an image. All 10,000 test images, for
    a band of a point needs them."""
    if not FASHION_MNIST.is_dir():
        pytest.skip("dataset-fashion-mnist is not installed")
    tensors = {}
    for part, prefix, count in (("train", "train", bands.IMAGES), ("test", "t10k", 10_000)):
        pixels = read_ubytes(f"{prefix}-images-idx3-ubyte.gz", 16).view(-1, 1, 28, 28)[:count]
        images = torch.nn.functional.avg_pool2d(pixels.float(), 4).flatten(1)
        tensors[f"{part}_x"] = (images - 73) / 90
        tensors[f"{part}_y"] = read_ubytes(f"{prefix}-labels-idx1-ubyte.gz", 8)[:count].long()
    path = tmp_path_factory.mktemp("data") / "small.pt"
    torch.save(tensors, path)
    return str(path)


# --- within a worker ------------------------------------------------------------------------------


def batches(rank: int, size: int, seed: int) -> list[torch.Tensor]:
    """The indices of each of this worker's batches. All workers have the same number of them."""
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(bands.IMAGES, generator=generator) for _ in range(bands.EPOCHS)]
    return [batch for order in orders for batch in order[rank::size].split(bands.BATCH)]


def wait_for_version(condition: Callable[[int], bool]) -> None:
    while not condition(stats()["servers"][0]["version"]):
        time.sleep(0.0002)


def kill_soon() -> threading.Thread:
    """Wherever this process is by then: in backward, in a push, between two."""

    def kill() -> None:
        time.sleep(random.uniform(0, 0.002))
        os.kill(os.getpid(), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def train(
    data: str, mode: str, lr: float, momentum: float, in_turn: bool, folder: str, kills: Kills
) -> dict[str, Any]:
    """Trains with this worker's images, from where its earlier life was, and tests what there is.

    in_turn: each waits for the others' pushes before its next, and so each is as many pushes old.
    folder: a file of each worker there grows by a byte with each answer.
    kills: by worker, the steps at which its lives end.
    """
    cr.init()
    rank, size = cr.rank(), cr.size()
    held = torch.load(data)
    torch.manual_seed(bands.SEED)
    net = torch.nn.Sequential(torch.nn.Linear(49, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum),
        net.named_parameters(),
        ps=replace(MODES[mode], force=True),
    )
    own = batches(rank, size, bands.SEED)
    done = stats()["servers"][0]["workers"][rank]["pushes"]
    life = int(os.environ["CIRANDA_LIFE"])
    dies_at = kills[rank][life - 1] if kills and life <= len(kills[rank]) else None
    killer = None
    with open(Path(folder) / str(rank), "ab", buffering=0) as answers:
        for step in range(done, len(own)):
            if step == dies_at:
                killer = kill_soon()
            elif killer and step == dies_at + LATEST_DEATH:
                killer.join()
            optimizer.param_groups[0]["lr"] = lr * (1 - step / len(own))
            optimizer.zero_grad()
            scores = net(held["train_x"][own[step]])
            torch.nn.functional.cross_entropy(scores, held["train_y"][own[step]]).backward()
            if in_turn:
                wait_for_version(lambda version: version % size == rank)
            optimizer.step()
            answers.write(b".")
    servers = stats()["servers"]
    with torch.no_grad():
        right = net(held["test_x"]).argmax(1) == held["test_y"]
    return {
        "accuracy": 100 * right.float().mean().item(),
        "version": servers[0]["version"],
        "pushes": [server["pushes"] for server in servers],
        "staleness": servers[0]["staleness"],
    }


# --- what comes of it -----------------------------------------------------------------------------


def last_of(values: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the worker that was the last: what is there when all have pushed."""
    return max(values, key=lambda value: value["version"])


def trained(
    data: str,
    folder: Path,
    mode: str,
    *,
    size: int = 4,
    lr: float = bands.LR,
    momentum: float = 0.0,
    in_turn: bool = False,
) -> dict[str, Any]:
    args = (data, mode, lr, momentum, in_turn, str(folder), [])
    return last_of(values_of(run_ranks(train, size, args=args, servers=2, timeout=100)))


@pytest.fixture(scope="module")
def sync(data: str, tmp_path_factory: pytest.TempPathFactory) -> float:
    """The accuracy that rounds reach, with the mean of four gradients and so four times the lr."""
    end = trained(data, tmp_path_factory.mktemp("sync"), "sync", lr=4 * bands.LR)
    return float(end["accuracy"])


def test_rounds_reach_what_they_did(sync: float) -> None:
    assert sync == pytest.approx(bands.SYNC, abs=bands.SYNC_OFF_MAX)


@pytest.mark.parametrize(("mode", "band"), [("ssp", bands.SSP_BAND), ("async", bands.ASYNC_BAND)])
def test_stale_gradients_reach_what_rounds_do(
    data: str, sync: float, tmp_path: Path, mode: str, band: float
) -> None:
    assert trained(data, tmp_path, mode)["accuracy"] >= sync - band


def test_pushes_that_are_seven_old_reach_it_too_but_not_with_momentum(
    data: str, sync: float, tmp_path: Path
) -> None:
    """Whoever trains so must pass force=True. The turns make it the same on any machine."""
    plain = trained(data, tmp_path, "async", size=8, in_turn=True)
    assert plain["staleness"][4] >= plain["version"] - 8  # 4 to 7; in the first turn less
    assert plain["accuracy"] >= sync - bands.ASYNC_BAND
    control = trained(data, tmp_path, "async", size=8, in_turn=True, momentum=0.9)
    assert not control["accuracy"] >= sync - bands.MOMENTUM_LOSES


def pushes_ahead(mode: str, as_far_as: int) -> list[int]:
    """Worker 1 pushes once worker 0 has come as far as it can, and then as it likes."""
    cr.init()
    parameter = torch.nn.Parameter(torch.zeros(8))
    optimizer = cr.DistributedOptimizer(
        torch.optim.SGD([parameter], lr=0.1), [("x", parameter)], ps=MODES[mode]
    )
    mark("has the first parameters")
    if cr.rank() == 0:
        wait_until_told("begin")
    else:
        wait_for_version(lambda version: version >= as_far_as)
    for _ in range(20):
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    staleness: list[int] = stats()["servers"][0]["staleness"]
    return staleness


def above_the_bound_of_ssp(mode: str, as_far_as: int) -> int:
    """Pushes staler than 2 workers can make them with SSP(3), which is 2 * 3 + 1."""
    with start_ranks(pushes_ahead, 2, args=(mode, as_far_as), servers=1) as job:
        for rank in range(2):
            job.wait_for_mark(rank, "has the first parameters")
        job.tell("begin")
        return max(sum(staleness[5:]) for staleness in values_of(job.wait()))


def test_the_gate_bounds_staleness_and_without_it_nothing_does() -> None:
    assert above_the_bound_of_ssp("ssp", as_far_as=4) == 0
    assert above_the_bound_of_ssp("async", as_far_as=20) > 0


# --- workers that are killed ----------------------------------------------------------------------


def test_killed_workers_cost_no_accuracy_and_no_push_counts_twice(
    data: str, sync: float, tmp_path: Path
) -> None:
    steps = bands.EPOCHS * bands.IMAGES // 4 // bands.BATCH
    drawn = random.Random(5)
    moments = range(10, steps - LATEST_DEATH, 2 * LATEST_DEATH)
    kills = [sorted(drawn.sample(moments, count)) for count in (2, 3, 1, 0)]
    args = (data, "async", bands.LR, 0.0, False, str(tmp_path), kills)
    with start_ranks(train, 4, args=args, servers=2) as job:
        for rank, of_rank in enumerate(kills):
            for _ in of_rank:
                assert job.processes[rank].wait(60) == -signal.SIGKILL, job.stderr(rank)
                job.start_again(rank)
        end = last_of(values_of(job.wait(100)))
    answered = sum((tmp_path / str(rank)).stat().st_size for rank in range(4))
    killed = sum(map(len, kills))
    assert 4 * steps - killed <= answered <= 4 * steps
    for pushes in end["pushes"]:
        assert answered <= pushes["applied"] <= answered + killed
        assert pushes["applied"] == sum(pushes.values())
    assert end["accuracy"] >= sync - bands.KILLED_BAND
