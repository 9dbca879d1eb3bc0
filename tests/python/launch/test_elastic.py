"""Training goes on when a rank is killed: breaks when a step or a sample is lost or counts twice,
when a rank that joins lacks something, or when the parameters are not those of a quiet run."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("warm_start")

SAMPLES, BATCH, PASSES = 62, 4, 3
PROGRAM = f"""
import json, hashlib, torch
import ciranda.torch as hvd
from ciranda import _C
from ciranda.torch import elastic
from torch.utils.data import DataLoader, TensorDataset

own = int(os.environ["CIRANDA_INCARNATION"])
place, at, victim = json.loads(os.environ["VICTIM"])
log = open(f"deals-{{own}}", "w", buffering=1)

def die(here, block):
    if (hvd.rank(), here, block) == (victim, place, at) and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGSTOP if "STOP" in os.environ else signal.SIGKILL)

hvd.init()
torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(8, 16), torch.nn.ReLU(),
    torch.nn.Dropout(0.2), torch.nn.Linear(16, 1),
).double()
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters(), max_grad_norm=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
data = torch.randn({SAMPLES}, 8, dtype=torch.float64)
loader = DataLoader(TensorDataset(torch.arange({SAMPLES}), data), {BATCH}, shuffle=True)
state = elastic.TorchState(model, optimizer, scheduler=scheduler, total=0.0, begun=0)
block = -1
model[0].weight.register_hook(lambda gradient: die("hook", block))
scores = []
for number in range({PASSES}):
    for step in elastic.steps(loader, state):
        block, epoch = step.number, _C.own_epoch()
        with step as (ids, x):
            state.begun += 1
            log.write(json.dumps(["deal", block, epoch, ids.tolist()]) + "\\n")
            die("block", block)
            optimizer.zero_grad()
            (model(x) ** 2).mean().backward()
            die("backward", block)
            optimizer.step()
            die("step", block)
        if step.done:
            log.write(json.dumps(["done", block, epoch, hvd.size()]) + "\\n")
        die("after", block)
    scheduler.step()
    state.total += 1
    die("between", number)
    def evaluate():
        die("agreed", number)
        return float(hvd.allreduce(model[3].weight.detach().sum(), name="score"))
    scores.append(elastic.agreed(evaluate))
    die("agreed_after", number)
die("end", 0)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
result = {{
    "rank": hvd.rank(), "size": hvd.size(), "digest": digest.hexdigest(), "scores": scores,
    "lr": optimizer.param_groups[0]["lr"], "blocks": state.step, "total": state.total,
    "begun": state.begun,
}}
open(f"result-{{own}}", "w").write(json.dumps(result))
die("result", 0)
"""


@dataclass
class Run:
    results: list[dict[str, Any]]
    deals: list[list[Any]]
    output: str

    def samples(self) -> Counter[int]:
        """How often each sample was trained on: in the attempt of each block that counted."""
        done = {(block, epoch) for what, block, epoch, _ in self.deals if what == "done"}
        assert len({block for block, _ in done}) == len(done), "a block counted twice"
        counts: Counter[int] = Counter()
        for what, block, epoch, ids in self.deals:
            if what == "deal" and (block, epoch) in done:
                counts.update(ids)
        return counts


Job = Callable[..., Run]


def run(
    launcher: Any, *options: str, victim: tuple[str, int, int] = ("", 0, -1), **environment: str
) -> Run:
    script = launcher.script(PROGRAM)
    environment["VICTIM"] = json.dumps(victim)
    done = launcher.run(*options, script, environment=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    results = [json.loads(each.read_text()) for each in launcher.folder.glob("result-*")]
    deals = [
        json.loads(line)
        for each in launcher.folder.glob("deals-*")
        for line in each.read_text().splitlines()
    ]
    return Run(results, deals, done.stderr + done.stdout)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Run:
    from launch.conftest import Launcher

    launcher = Launcher(tmp_path_factory.mktemp("quiet"))
    launcher.is_warm = True
    return run(launcher, "-np", "3", "--min-np", "2")


def check_whole(result: Run) -> None:
    """Each pass has trained on each sample once, and all ranks ended with the same."""
    assert result.samples() == Counter({each: PASSES for each in range(SAMPLES)})
    first = result.results[0]
    for each in result.results:
        for what in ("digest", "scores", "lr", "blocks", "begun", "total", "size"):
            assert each[what] == first[what], what
    assert first["total"] == PASSES
    assert first["begun"] == first["blocks"], "what a block had begun was not undone"
    assert first["lr"] == pytest.approx(0.005)


def test_a_quiet_job(quiet: Run) -> None:
    check_whole(quiet)
    assert sorted(each["rank"] for each in quiet.results) == [0, 1, 2]


PLACES = [
    ("block", 2, 1),
    ("hook", 3, 2),
    ("backward", 2, 0),
    ("step", 2, 0),
    ("after", 3, 2),
    ("between", 0, 1),
    ("agreed", 0, 0),
    ("agreed_after", 1, 2),
    ("end", 0, 0),
    ("result", 0, 0),
]


@pytest.mark.parametrize("victim", PLACES, ids=lambda each: f"{each[0]}-{each[2]}")
def test_a_spare_takes_the_place(launcher: Any, quiet: Run, victim: tuple[str, int, int]) -> None:
    result = run(
        launcher, "-np", "3", "--min-np", "3", "--spares", "1", "--reset-limit", "0", victim=victim
    )
    check_whole(result)
    assert len(result.results) == (4 if victim[0] == "result" else 3)
    assert result.results[0]["digest"] == quiet.results[0]["digest"]
    assert result.results[0]["scores"] == quiet.results[0]["scores"]
    assert re.search(r"rank \d( \(slot \d\))? was killed by SIGKILL", result.output)
    assert "Warning" not in result.output


@pytest.mark.parametrize("victim", [("backward", 1, 2), ("step", 4, 1)], ids=str)
def test_fewer_ranks_go_on_and_a_new_one_joins(launcher: Any, victim: tuple[str, int, int]) -> None:
    check_whole(run(launcher, "-np", "3", "--min-np", "1", victim=victim))


def test_fewer_ranks_go_on_alone(launcher: Any) -> None:
    result = run(launcher, "-np", "2", "--min-np", "1", "--reset-limit", "0", victim=("step", 3, 1))
    check_whole(result)
    assert [each["size"] for each in result.results] == [1]


def test_a_rank_that_stands_still_is_replaced(launcher: Any, quiet: Run) -> None:
    result = run(
        launcher,
        *("-np", "3", "--min-np", "3", "--spares", "1", "--lease", "1"),
        victim=("backward", 2, 1),
        STOP="1",
    )
    check_whole(result)
    assert result.results[0]["digest"] == quiet.results[0]["digest"]
    assert "has stood still for 1 s (stopped, or frozen), and is killed" in result.output


WRONG = """
import torch
import ciranda.torch as hvd
from ciranda.torch import elastic
from torch.utils.data import DataLoader

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
loader = DataLoader(torch.randn(16, 2), 4)
"""
MISTAKES = {
    "an optimizer that is not registered": (
        "for step in elastic.steps(loader, elastic.TorchState(model)): pass",
        "a DistributedOptimizer (SGD) is not registered",
    ),
    "two steps in a block": (
        "for step in elastic.steps(loader, elastic.TorchState(model, optimizer)):\n"
        "    with step as x:\n"
        "        model(x).sum().backward()\n"
        "        optimizer.step()\n"
        "        optimizer.step()",
        "calls step() of an optimizer twice in one block",
    ),
    "a process set": ("hvd.add_process_set([0])", "would have other processes after each change"),
    "join() in a block": (
        "for step in elastic.steps(loader, elastic.TorchState(model, optimizer)):\n"
        "    with step as x:\n"
        "        hvd.join()",
        "join: in a block of elastic.steps() each rank has a batch",
    ),
    "samples that cannot be dealt": (
        "elastic.steps(DataLoader(torch.randn(4), batch_size=None), None).__next__()",
        "the loader's samples cannot be dealt anew when ranks change, because it has a "
        "batch_sampler, or batch_size=None",
    ),
    "a loop without blocks": (
        "for step in elastic.steps(loader, elastic.TorchState(model, optimizer)): pass",
        "the loop has no `with step as batch:`",
    ),
    "agreed() without a state": ("elastic.agreed(print)", "make the TorchState of the training"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_a_sentence(launcher: Any, mistake: str) -> None:
    program, sentence = MISTAKES[mistake]
    done = launcher.run("-np", "1", "--min-np", "1", launcher.script(WRONG + program))
    assert done.returncode == 1
    assert sentence in done.stderr.replace("\n[0] ", " ")


DRIFTS = """
import torch
import ciranda.torch as hvd
from ciranda.torch import elastic
from torch.utils.data import DataLoader

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters())
state = elastic.TorchState(model, optimizer, count=0)
for step in elastic.steps(DataLoader(torch.randn(36, 2), 4), state):
    with step as x:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if step.number == 0 and hvd.rank() == 1:
            CHANGE
        if step.number == 1 and hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("change", "code", "sentence"),
    [
        (
            'optimizer.state[model.weight]["momentum_buffer"] += 1',
            1,
            "rank 1 has another value of 'momentum_buffer' of parameter 'weight' in "
            "optimizer.state than rank 0; the ranks have drifted apart",
        ),
        ("state.count += 1", 0, "elastic: rank 1 has another value of 'count' than rank 0; a rank"),
    ],
)
def test_a_rank_that_drifts_is_told_after_the_next_change(
    launcher: Any, change: str, code: int, sentence: str
) -> None:
    options = ("-np", "3", "--min-np", "2", "--reset-limit", "0")
    done = launcher.run(*options, launcher.script(DRIFTS.replace("CHANGE", change)))
    assert done.returncode == code, done.stderr
    assert sentence in done.stderr.replace("\n[0] ", " ")
