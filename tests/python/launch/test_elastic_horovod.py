"""Horovod's elastic loop when ranks die and join: breaks when a commit is lost, when a sample that
was committed is dealt again, or when a rank that joins lacks something."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("warm_start")

SAMPLES, BATCH, EPOCHS = 48, 2, 2
PROGRAM = f"""
import json, hashlib, torch
import ciranda.torch as hvd
from ciranda import _C
from torch.utils.data import DataLoader, TensorDataset

own = int(os.environ["CIRANDA_INCARNATION"])
deaths = json.loads(os.environ["DEATHS"])
by_name = bool(os.environ.get("BY_NAME"))
waits_at = int(os.environ.get("WAITS_AT", -1))
log = open(f"log-{{own}}", "w", buffering=1)

def note(*what):
    log.write(json.dumps([*what, _C.own_epoch()]) + "\\n")

def die(here):
    number = len([each for each in os.listdir() if each.startswith("killed")])
    if number < len(deaths) and [here, state.batches, hvd.rank()] == deaths[number]:
        open(f"killed-{{number}}", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

class State(hvd.elastic.TorchState):
    def save(self):
        die("commit")
        super().save()
        die("committed")

hvd.init()
torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).double()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
samples = TensorDataset(torch.arange({SAMPLES}), torch.randn({SAMPLES}, 8, dtype=torch.float64))
sampler = hvd.elastic.ElasticSampler(samples)
loader = DataLoader(samples, {BATCH}, sampler=sampler)
state = State(
    model, optimizer, scheduler=scheduler, sampler=sampler, epoch=0, batches=0, extra=0)

def on_reset():
    die("reset")
    note("reset", hvd.size())
    state.extra += 100

state.register_reset_callbacks([on_reset])
model[0].weight.register_hook(lambda gradient: die("hook"))

def wait_for_a_rank_that_joins():
    state.extra += 1  # and no commit
    for _ in range(3000):
        state.check_host_updates()
        time.sleep(0.01)
    raise SystemExit("nobody joins")

@hvd.elastic.run
def train(state):
    note("begin", state.batches, state.extra)
    while state.epoch < {EPOCHS}:
        for ids, x in loader:
            if state.batches == waits_at and state.extra % 100 == 0:
                wait_for_a_rank_that_joins()
            note("deal", state.epoch, state.batches, ids.tolist())
            die("batch")
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            optimizer.step()
            die("step")
            if by_name:
                sampler.record_indices(ids.tolist())
            else:
                sampler.record_batch(0, {BATCH})
            state.batches += 1
            state.commit()
            die("after")
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        scheduler.step()
    die("last")
    return state.batches

open(f"ready-{{own}}", "w").close()
batches = train(state)
if os.environ.get("WAITS_LATE"):
    while _C.newest_order().epoch == _C.own_epoch():
        time.sleep(0.01)
score = float(hvd.allreduce(model[2].weight.detach().sum(), name="score"))
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
result = {{
    "rank": hvd.rank(), "size": hvd.size(), "digest": digest.hexdigest(), "score": score,
    "batches": batches, "extra": state.extra, "lr": optimizer.param_groups[0]["lr"],
}}
open(f"result-{{own}}", "w").write(json.dumps(result))
die("end")
"""

Death = tuple[str, int, int]  # where, after how many batches, which rank


@dataclass
class Run:
    results: list[dict[str, Any]]
    logs: dict[int, list[list[Any]]]  # by incarnation
    output: str

    def check_whole(self) -> None:
        """All ranks ended with the same."""
        first = self.results[0]
        for each in self.results:
            for what in set(first) - {"rank"}:
                assert each[what] == first[what], what

    def samples(self) -> list[Counter[int]]:
        """How often each sample counted, by epoch: in the last attempt of each batch."""
        deals = [each[1:] for log in self.logs.values() for each in log if each[0] == "deal"]
        attempts: dict[tuple[int, int], int] = {}
        for epoch, batch, _, attempt in deals:
            attempts[epoch, batch] = max(attempt, attempts.get((epoch, batch), 0))
        counts = [Counter[int]() for _ in range(EPOCHS)]
        for epoch, batch, ids, attempt in deals:
            if attempts[epoch, batch] == attempt:
                counts[epoch].update(ids)
        return counts

    def said(self, what: str, incarnation: int) -> list[list[Any]]:
        return [each[1:-1] for each in self.logs[incarnation] if each[0] == what]


def run(launcher: Any, *options: str, deaths: tuple[Death, ...] = (), **settings: str) -> Run:
    environment = {"DEATHS": json.dumps(deaths), **settings}
    done = launcher.run(*options, launcher.script(PROGRAM), environment=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    results = [json.loads(each.read_text()) for each in launcher.folder.glob("result-*")]
    logs = {
        int(each.name.removeprefix("log-")): list(map(json.loads, each.read_text().splitlines()))
        for each in launcher.folder.glob("log-*")
    }
    return Run(results, logs, done.stderr + done.stdout)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Run:
    from launch.conftest import Launcher

    launcher = Launcher(tmp_path_factory.mktemp("quiet"))
    launcher.is_warm = True
    return run(launcher, "-np", "2", "--min-np", "1")


EACH_ONCE = [Counter(range(SAMPLES))] * EPOCHS
TWO_AND_A_SPARE = ("-np", "2", "--min-np", "2", "--spares", "1", "--reset-limit", "0")


def test_a_quiet_job(quiet: Run) -> None:
    quiet.check_whole()
    assert quiet.samples() == EACH_ONCE
    assert [(each["size"], each["batches"]) for each in quiet.results] == [(2, 24)] * 2


DEATHS: list[Death] = [
    ("hook", 4, 1),
    ("step", 5, 0),
    ("commit", 6, 1),
    ("committed", 7, 0),
    ("last", 24, 0),
    ("end", 24, 1),
]


@pytest.mark.parametrize("death", DEATHS, ids=lambda each: f"{each[0]}-{each[2]}")
def test_a_spare_takes_the_place(launcher: Any, quiet: Run, death: Death) -> None:
    """Horovod's promise, and a commit after each batch: the end is that of a quiet job."""
    result = run(launcher, *TWO_AND_A_SPARE, deaths=(death,))
    result.check_whole()
    assert result.samples() == EACH_ONCE
    first = result.results[0]
    assert (first["batches"], first["lr"]) == (24, pytest.approx(0.005))
    for what in ("digest", "score"):
        assert first[what] == quiet.results[0][what], what
    assert re.search(r"rank \d.* (was killed|was lost)", result.output)


def test_fewer_ranks_go_on(launcher: Any) -> None:
    """The reset callback kills another one, in the middle of the recovery."""
    deaths = (("step", 3, 2), ("reset", 4, 1))
    result = run(launcher, "-np", "3", "--min-np", "1", "--reset-limit", "0", deaths=deaths)
    result.check_whole()
    assert [each["size"] for each in result.results] == [1]
    for counts in result.samples():
        assert set(counts) == set(range(SAMPLES))
        assert counts.total() <= SAMPLES + 2


def test_a_lost_rank_is_started_again_and_joins(launcher: Any) -> None:
    deaths = (("after", 4, 0),)
    result = run(launcher, "-np", "2", "--min-np", "1", deaths=deaths, WAITS_AT="6")
    result.check_whole()
    assert [each["size"] for each in result.results] == [2, 2]
    assert result.samples() == EACH_ONCE


def test_a_rank_that_joins_interrupts_and_nothing_is_restored(launcher: Any) -> None:
    """Each reset adds 100 to `extra`, the wait adds 1, and the rank that joins gets all of it."""
    deaths = (("after", 4, 1),)
    result = run(launcher, "-np", "2", "--min-np", "1", deaths=deaths, WAITS_AT="6")
    result.check_whole()
    lost = result.said("reset", 1).index([1])
    assert result.said("reset", 1)[lost:] == [[1], [2]]
    (joined,) = result.said("begin", 3)
    assert joined == result.said("begin", 1)[-1] == [6, 201]
    assert result.results[0]["extra"] == 201


def test_a_rank_that_joins_after_the_end_leaves(launcher: Any) -> None:
    """What follows in its program would wait for ranks that have it behind them."""
    deaths = (("after", 20, 1),)
    result = run(launcher, "-np", "2", "--min-np", "1", deaths=deaths, WAITS_LATE="1")
    assert [each["size"] for each in result.results] == [1]
    assert result.logs[3] == []
    assert "back to 2 ranks" in result.output


def test_samples_that_are_counted_by_name(launcher: Any) -> None:
    result = run(launcher, *TWO_AND_A_SPARE, deaths=(("step", 5, 0),), BY_NAME="1")
    result.check_whole()
    assert result.samples() == EACH_ONCE


TWO_FUNCTIONS = """
import json, torch
import ciranda.torch as hvd
from ciranda.torch import elastic

own = int(os.environ["CIRANDA_INCARNATION"])
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
state = elastic.TorchState(model, optimizer, scheduler=scheduler, batch=0, stage=0)
seen = []

def train(state, to):
    seen.append([state.batch, state.stage, optimizer.param_groups[0]["lr"]])
    while state.batch < to:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if state.batch == 5 and hvd.rank() == 0 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        state.batch += 1
        state.commit()
    return {"batch": state.batch}

first, second = elastic.run(train), elastic.run(train)
results = [first(state, 3)]
scheduler.step()
state.stage += 1
results.append(elastic.agreed(lambda: 7))
results.append(second(state, to=8))
open(f"result-{own}", "w").write(json.dumps([seen, results, model.weight.tolist()]))
"""


def test_a_rank_that_joins_skips_functions_that_have_ended(launcher: Any) -> None:
    done = launcher.run(*TWO_AND_A_SPARE, launcher.script(TWO_FUNCTIONS))
    assert done.returncode == 0, done.stderr
    found = [json.loads(each.read_text()) for each in sorted(launcher.folder.glob("result-*"))]
    results = [{"batch": 3}, 7, {"batch": 8}]
    (old, joined) = sorted(found, key=lambda each: -len(each[0]))
    assert old[1:] == joined[1:] == [results, joined[2]]
    assert old[0] == [[0, 0, 1.0], [3, 1, 0.5], joined[0][0]]
    assert joined[0] == [[5, 1, 0.5]] or joined[0] == [[6, 1, 0.5]]
