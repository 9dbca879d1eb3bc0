"""What a training uses beside plain steps goes on when a rank is killed: breaks when a block that
is redone, or a rank that joins, ends with other parameters or state than without a loss."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("warm_start")

# The training is done twice in one job. In the second one a rank dies, in its third block.
BEGIN = """
import copy, hashlib, json, torch
import ciranda.torch as hvd
from ciranda.torch import elastic
from torch.utils.data import DataLoader, TensorDataset

def die(here):
    due = (here, number, step.number, hvd.rank()) == (os.environ["PLACE"], 1, BLOCKS + 2, 1)
    if due and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

class Counting(torch.optim.SGD):
    # Its step ends when this rank's parameters have changed, and no other rank knows.
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["steps"] = self.state[parameter].get("steps", 0) + 1
        die("inner")
        return loss

hvd.init()
torch.manual_seed(1)
BLOCKS = 4
data = torch.randn(BLOCKS * 12, 8, dtype=torch.float64)
loader = DataLoader(TensorDataset(data), 4)
model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).double()
more = {}
"""
COMPARING = """
registered = {"model": model, "optimizer": optimizer, **more}
at_first = {name: copy.deepcopy(each.state_dict()) for name, each in registered.items()}

def begin_anew():
    for name, each in registered.items():
        each.load_state_dict(copy.deepcopy(at_first[name]))

def flat(value):
    if isinstance(value, torch.Tensor):
        return hashlib.sha256(value.to_dense().numpy().tobytes()).hexdigest()
    if isinstance(value, dict):
        return {str(key): flat(each) for key, each in value.items()}
    return [flat(each) for each in value] if isinstance(value, (list, tuple)) else repr(value)

def found():
    return {name: flat(each.state_dict()) for name, each in registered.items()}
"""
BY_STEPS = """
state = elastic.TorchState(model, optimizer, **more)
quiet = None
for number in range(2):
    if not state.skipping:
        begin_anew()
    for step in elastic.steps(loader, state):
        with step as (x,):
            train(x)
    quiet = quiet or elastic.agreed(found)
open(f"result-{hvd.rank()}", "w").write(json.dumps([quiet, found()]))
"""
BY_COMMITS = """
class step:
    number = 0

@elastic.run
def train_twice(state):
    global number
    while state.batch < 2 * BLOCKS:
        number, step.number = state.batch // BLOCKS, state.batch
        if state.batch == BLOCKS:
            state.quiet = found()
            begin_anew()
        train(data[(state.batch % BLOCKS * hvd.size() + hvd.rank()) * 4 :][:4])
        state.batch += 1
        state.commit()

state = elastic.TorchState(model, optimizer, batch=0, quiet=None, **more)
train_twice(state)
open(f"result-{hvd.rank()}", "w").write(json.dumps([state.quiet, found()]))
"""


@dataclass
class Feature:
    places: list[str]
    program: str


FEATURES = {
    "adasum": Feature(
        ["inner", "backward"],
        """
optimizer = hvd.DistributedOptimizer(Counting(model.parameters(), lr=0.1), op=hvd.Adasum)
def train(x):
    optimizer.zero_grad()
    (model(x) ** 2).mean().backward()
    die("backward")
    optimizer.step()
""",
    ),
    "lbfgs": Feature(
        ["closure"],
        """
optimizer = hvd.DistributedOptimizer(
    torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe"))
def train(x):
    calls = []
    def closure():
        calls.append(1)
        if len(calls) == 3:
            die("closure")
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        return loss
    float(optimizer.step(closure).detach())
""",
    ),
    "a closure": Feature(
        ["inner"],
        """
optimizer = hvd.DistributedOptimizer(Counting(model.parameters(), lr=0.1))
def train(x):
    def closure():
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        return loss
    float(optimizer.step(closure).detach())
""",
    ),
    "SyncBatchNorm": Feature(
        ["hook"],
        """
model = torch.nn.Sequential(
    torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1)).double()
unused = hvd.SyncBatchNorm(6, dtype=torch.float64)
model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
model[2].weight.register_hook(lambda gradient: die("hook"))
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1))
def train(x):
    if number == 0:
        unused(x[:, :6])  # which a rank that joins has never run
    optimizer.zero_grad()
    (model(x) ** 2).mean().backward()
    optimizer.step()
""",
    ),
    "accumulation": Feature(
        ["between"],
        """
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.1), op=hvd.Sum)
optimizer.set_backward_passes_per_step(2)
def train(x):
    optimizer.zero_grad()
    (model(x[:2]) ** 2).mean().backward()
    die("between")
    (model(x[2:]) ** 2).mean().backward()
    optimizer.step()
""",
    ),
    "two optimizers": Feature(
        ["inner", "between"],
        """
maker = torch.nn.Linear(3, 8).double()
optimizer = hvd.DistributedOptimizer(Counting(model.parameters(), lr=0.1))
making = hvd.DistributedOptimizer(torch.optim.Adam(maker.parameters(), lr=0.1))
more = {"maker": maker, "making": making}
def train(x):
    made = maker(torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(
        step.number % BLOCKS)))
    optimizer.zero_grad()
    (model(x).mean() - model(made.detach()).mean()).backward()
    optimizer.step()
    die("between")
    making.zero_grad()
    model(made).mean().backward()
    making.step()
""",
    ),
    "a compressor in Python": Feature(
        ["hook"],
        """
class Halves:
    @staticmethod
    def compress(tensor):
        return tensor.float(), tensor.dtype
    @staticmethod
    def decompress(tensor, dtype):
        return tensor.to(dtype)
model[0].weight.register_hook(lambda gradient: die("hook"))
optimizer = hvd.DistributedOptimizer(
    torch.optim.Adam(model.parameters(), lr=0.1), compression=Halves)
def train(x):
    optimizer.zero_grad()
    (model(x) ** 2).mean().backward()
    optimizer.step()
""",
    ),
    "sparse gradients": Feature(
        ["backward"],
        """
model = torch.nn.EmbeddingBag(20, 3, sparse=True).double()
optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(model.parameters(), lr=0.1))
def train(x):
    optimizer.zero_grad()
    (model((x * 5).long().abs() % 20) ** 2).mean().backward()
    die("backward")
    optimizer.step()
""",
    ),
    # A scheduler and an average of the parameters follow each step, within the block.
    "buffers": Feature(
        ["inner", "step"],
        """
model = torch.nn.Sequential(
    torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1)).double()
optimizer = hvd.DistributedOptimizer(
    Counting(model.parameters(), lr=0.1), broadcast_buffers=model)
average = copy.deepcopy(model)
more = {
    "average": average, "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}
def train(x):
    optimizer.zero_grad()
    (model(x) ** 2).mean().backward()
    optimizer.step()
    die("step")
    more["scheduler"].step()
    with torch.no_grad():
        for mean, now in zip(average.parameters(), model.parameters()):
            mean.lerp_(now, 0.1)
""",
    ),
}
CASES = [(name, place) for name, feature in FEATURES.items() for place in feature.places]


@pytest.mark.parametrize(("name", "place"), CASES, ids=lambda each: each.replace(" ", "_"))
def test_it_ends_as_without_a_loss(launcher: Any, name: str, place: str) -> None:
    check(launcher, FEATURES[name].program + COMPARING + BY_STEPS, place)


@pytest.mark.parametrize(("name", "place"), [("adasum", "inner"), ("lbfgs", "closure")])
def test_it_does_so_under_run(launcher: Any, name: str, place: str) -> None:
    check(launcher, FEATURES[name].program + COMPARING + BY_COMMITS, place)


def check(launcher: Any, program: str, place: str) -> None:
    done = launcher.run(
        *("-np", "3", "--min-np", "3", "--spares", "1", "--reset-limit", "0"),
        launcher.script(BEGIN + program),
        environment={"PLACE": place},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert (launcher.folder / "killed").exists()
    assert "Warning" not in done.stderr
    for rank in range(3):
        quiet, killed = json.loads((launcher.folder / f"result-{rank}").read_text())
        assert killed == quiet, f"rank {rank}"
