"""Frameworks wrap a model in DistributedDataParallel where they find RANK and WORLD_SIZE, which
`ciranda run` sets. A DistributedOptimizer then has to train as DDP alone does, and so without
the wrapper, in the ways of docs/migrate-from-ddp.md."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMON = """
import copy, sys, torch
import ciranda.torch as cr

cr.init()
torch.set_num_threads(1)
torch.manual_seed(1)
network = torch.nn.Sequential(torch.nn.Linear(8, 400), torch.nn.Tanh(), torch.nn.Linear(400, 200))
rows, targets = torch.randn(64, 8), torch.randn(64, 200)


def distribute(model, ours):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return cr.DistributedOptimizer(optimizer, model.named_parameters()) if ours else optimizer


def trained_alike(train):
    expected = copy.deepcopy(network)
    train(expected, ours=False, wrapped=True)
    assert not torch.equal(expected[0].weight, network[0].weight)
    for wrapped in (True, False):
        trained = copy.deepcopy(network)
        train(trained, ours=True, wrapped=wrapped)
        torch.testing.assert_close(trained.state_dict(), expected.state_dict())
        for parameter in trained.parameters():
            assert torch.equal(cr.broadcast(parameter.data, 0), parameter.data)
"""

ACCELERATE = """
from accelerate import Accelerator


def train(model, ours, wrapped):
    accelerator = Accelerator(cpu=True)
    optimizer = distribute(model, ours)
    if wrapped:
        model, optimizer = accelerator.prepare(model, optimizer)
    else:
        model = accelerator.prepare_model(model, evaluation_mode=True)
        optimizer = accelerator.prepare(optimizer)
    assert isinstance(model, torch.nn.parallel.DistributedDataParallel) == wrapped
    for step in range(4):
        part = slice(8 * step + 4 * cr.rank(), 8 * step + 4 * cr.rank() + 4)
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(rows[part]), targets[part]))
        optimizer.step()


trained_alike(train)
"""

TRANSFORMERS = """
import functools
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, y):
        return {"loss": torch.nn.functional.mse_loss(self.inner(x), y)}


def train(model, ours, wrapped):
    arguments = TrainingArguments(
        output_dir="out", use_cpu=True, per_device_train_batch_size=4, max_steps=4,
        report_to=[], save_strategy="no", disable_tqdm=True, gradient_accumulation_steps=2,
    )
    data = [{"x": x, "y": y} for x, y in zip(rows, targets)]
    optimizers = (distribute(model, ours), None)
    trainer = Trainer(Model(model), arguments, train_dataset=data, optimizers=optimizers)
    if not wrapped:
        prepare = trainer.accelerator.prepare_model
        trainer.accelerator.prepare_model = functools.partial(prepare, evaluation_mode=True)
    trainer.train()
    model = trainer.model_wrapped
    assert isinstance(model, torch.nn.parallel.DistributedDataParallel) == wrapped


trained_alike(train)
"""

LIGHTNING = """
import lightning


class Module(lightning.LightningModule):
    def __init__(self, inner, ours):
        super().__init__()
        self.inner, self.ours = inner, ours

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.mse_loss(self.inner(x), y)

    def configure_optimizers(self):
        return distribute(self.inner, self.ours)


def train(model, ours, wrapped):
    data = torch.utils.data.TensorDataset(rows, targets)
    sampler = torch.utils.data.DistributedSampler(data, cr.size(), cr.rank(), shuffle=False)
    how = {"strategy": "ddp", "devices": 2} if wrapped else {"strategy": "auto", "devices": 1}
    lightning.Trainer(
        **how, accelerator="cpu", max_steps=4, use_distributed_sampler=False, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ).fit(Module(model, ours), torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler))


trained_alike(train)
"""


@pytest.mark.parametrize(
    ("package", "script"),
    [("accelerate", ACCELERATE), ("transformers", TRANSFORMERS), ("lightning", LIGHTNING)],
)
def test_a_model_that_a_framework_wraps_trains_as_ddp_alone(launcher, package, script):
    pytest.importorskip(package, reason=f"{package} is not installed (requirements-frameworks.txt)")
    (launcher.folder / "train.py").write_text(COMMON + script)
    result = subprocess.run(
        [sys.executable, "-m", "ciranda", "run", "-np", "2", sys.executable, "train.py"],
        cwd=launcher.folder,
        env=launcher.environment,
        capture_output=True,
        text=True,
        timeout=115,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    warnings = [
        line for line in result.stderr.splitlines() if "gradients are reduced twice" in line
    ]
    assert len(warnings) == 2, result.stderr  # once on each rank
