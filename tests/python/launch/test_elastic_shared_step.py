"""Ranks die in a step that they share: breaks when a part of it is lost, made twice or left torn,
when another rank does not count it, or when what is left at the end is not that of a quiet run."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("warm_start")

# A rank dies where its update comes to a page of its parameters that it may not write.
PROGRAM = """
import ctypes, hashlib, json, mmap, random, threading, torch
import ciranda.torch as hvd
from ciranda import _C
from ciranda.torch import elastic, rank_optimizer
from torch.utils.data import DataLoader, TensorDataset

asked = json.loads(os.environ["ASKED"])
own = int(os.environ["CIRANDA_INCARNATION"])
libc = ctypes.CDLL(None)
CHUNK, PAGE = 131072, 4096

def once(what):
    try:
        os.close(os.open(what, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

def forbid_writes():
    # Of each chunk that a rank may claim, all pages but five.
    for parameter in model.parameters():
        begin, end = parameter.data_ptr(), parameter.data_ptr() + parameter.nbytes
        for chunk in range(begin, end, CHUNK):
            first = (chunk // PAGE + 6) * PAGE
            bytes = min(chunk + CHUNK, end) // PAGE * PAGE - first
            if bytes > 0:
                read = mmap.PROT_READ
                assert libc.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(bytes), read) == 0

complete = rank_optimizer.complete_steps
def complete_and_tell(optimizers):
    cores = [each._ciranda_core for each in optimizers if hasattr(each, "_ciranda_core")]
    found = [each.lost_step().name for each in cores]
    with open(f"lost-{own}", "a") as told:
        told.write(json.dumps(found) + "\\n")
    if "begun" in found and own == asked.get("completing") and once("second"):
        forbid_writes()
    complete(optimizers)
rank_optimizer.complete_steps = complete_and_tell

hvd.init()
def die_soon(draw=random.Random(asked.get("random", 0) + own)):
    def die(after=draw.random() * 0.003):
        time.sleep(after)
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=die, daemon=True).start()

places = asked.get("before", {})  # the victim and the block by place
def die(place):
    if [hvd.rank(), step.number] == places.get(place) and once(place):
        os.kill(os.getpid(), signal.SIGKILL)
    if step.number == places.get(place, [0, -1])[1]:
        places.pop(place)
        time.sleep(0.3)  # then the others hear of it here, and hold what is left of their graphs

torch.manual_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(3)))
named = list(model.named_parameters())
model[2].weight.register_hook(lambda _: die("backward"))
kinds = dict(adam=torch.optim.Adam, adagrad=torch.optim.Adagrad)
parts = [named] if asked["optimizers"] == 1 else [named[:4], named[4:]]
optimizers = [
    hvd.DistributedOptimizer(
        kinds[asked["kind"]]([p for _, p in part], lr=0.01), part, bucket_bytes=100_000,
        shared_step=asked["shared_step"], backward_passes_per_step=asked["passes"],
        max_grad_norm=asked["norm"])
    for part in parts
]
x = torch.randn(120, 256)
loader = DataLoader(TensorDataset(x), 2, shuffle=True)
state = elastic.TorchState(model, **{f"optimizer{i}": each for i, each in enumerate(optimizers)})
norms = []
for step in elastic.steps(loader, state):
    with step as (rows,):
        assert all(each.why_not_shared() == "" or hvd.size() == 1 for each in optimizers)
        for each in optimizers:
            each.zero_grad()
        for _ in range(asked["passes"]):
            loss = (model(rows) ** 2).mean()  # holds the graph until the next block
            die("forward")
            hvd.allreduce(loss.detach(), name="loss")
            loss.backward()
        if step.number == asked.get("at") and hvd.rank() == asked["victim"] and once("first"):
            forbid_writes()
            time.sleep(0.2)  # the others wait, so that this rank is the first to begin
        if "random" in asked and own <= 3 and step.number == 3 + 4 * own:
            die_soon()
        for each in optimizers:
            if asked["reduced"]:
                each.synchronize()  # the step takes the average
            each.step()
    norms.append([each.grad_norm for each in optimizers])
tensors = [p.detach() for p in model.parameters()]
for each in optimizers:
    held = each.state_dict()["state"]
    tensors += [torch.as_tensor(held[p][name]) for p in sorted(held) for name in sorted(held[p])]
digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in tensors)).hexdigest()
result = dict(rank=hvd.rank(), digest=digest, norm=norms[-1:], blocks=state.step)
open(f"result-{own}", "w").write(json.dumps(result))
"""

CLIPPED = {
    **{"shared_step": "host", "kind": "adam", "reduced": False},
    **{"passes": 2, "norm": 0.01, "optimizers": 1},
}
REDUCED = {**CLIPPED, "kind": "adagrad", "reduced": True, "passes": 1, "optimizers": 2}
AUTO = {**CLIPPED, "shared_step": "auto", "passes": 1, "norm": None}
WAYS = {"clipped": CLIPPED, "reduced": REDUCED, "auto": AUTO}


def run(launcher: Any, *options: str, **asked: Any) -> list[dict[str, Any]]:
    done = launcher.run(
        *("-np", "3", "--min-np", "3", *options),
        launcher.script(PROGRAM),
        environment={"ASKED": json.dumps(asked)},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    results = [json.loads(each.read_text()) for each in launcher.folder.glob("result-*")]
    assert sorted(each["rank"] for each in results) == [0, 1, 2]
    return results


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What is left at the end of a job in which no rank dies, by the way of its steps."""
    from launch.conftest import Launcher

    results = {}
    for way, asked in WAYS.items():
        launcher = Launcher(tmp_path_factory.mktemp("quiet"))
        launcher.is_warm = True
        results[way] = run(launcher, **asked)[0]
    return results


def check(launcher: Any, results: list[dict[str, Any]], quiet: dict[str, Any]) -> set[str]:
    """Checks the results of all ranks, and returns what ranks have found at their losses."""
    for each in results:
        for what in ("digest", "norm", "blocks"):
            assert each[what] == quiet[what], what
    lines = [
        line for each in launcher.folder.glob("lost-*") for line in each.read_text().splitlines()
    ]
    return {found for line in lines for found in json.loads(line)}


@pytest.mark.parametrize(("way", "victim"), [("clipped", 0), ("reduced", 2)])
def test_the_step_in_which_a_rank_dies_is_completed(
    launcher: Any, quiet: dict[str, Any], way: str, victim: int
) -> None:
    results = run(launcher, "--spares", "1", **WAYS[way], victim=victim, at=3)
    assert "begun" in check(launcher, results, quiet[way])


def test_a_rank_dies_while_it_completes_the_step(launcher: Any, quiet: dict[str, Any]) -> None:
    """Processes are numbered from 1, so that number 2 is rank 1, the first that survives."""
    results = run(launcher, "--spares", "2", **CLIPPED, victim=0, at=3, completing=2)
    assert (launcher.folder / "second").exists()
    assert "begun" in check(launcher, results, quiet["clipped"])


def test_graphs_of_blocks_that_are_redone_hold_no_parameter_back(
    launcher: Any, quiet: dict[str, Any]
) -> None:
    before = {"forward": [1, 2], "backward": [2, 4]}
    results = run(launcher, "--spares", "2", **AUTO, before=before, victim=0, at=6)
    assert {*before, "first"} <= set(os.listdir(launcher.folder))
    assert "begun" in check(launcher, results, quiet["auto"])


@pytest.mark.parametrize("way", ["clipped", "reduced"])
def test_each_rank_is_killed_at_a_random_moment(
    launcher: Any, quiet: dict[str, Any], way: str
) -> None:
    asked = {**WAYS[way], "random": 0x51}
    check(launcher, run(launcher, "--spares", "2", **asked), quiet[way])
