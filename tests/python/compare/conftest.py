"""A study and a system that no one publishes: as a user would write them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import warm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # tests/
from net.fixtures import make_network  # noqa: F401 - real hosts, as far as ssh can tell

SYSTEM = '''
"""Gradients are summed, and nobody divides them."""

from ciranda.compare.system import Processes, System


class Sums(System):
    title = "sums"
    processes = Processes("torch")
    ranks_min = 2

    def start(self, job):
        import torch.distributed as dist

        dist.init_process_group("gloo")
        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        super().start(job)

    def step(self, images, labels):
        from ciranda.compare.workload import compute_gradients

        computed_s = compute_gradients(self.model, self.optimizer, images, labels)
        for parameter in self.model.parameters():
            self._dist.all_reduce(parameter.grad)
        self.optimizer.step()
        return computed_s

    def same(self, value):
        import torch

        told = torch.tensor([value], dtype=torch.float64)
        self._dist.broadcast(told, 0)
        return float(told)

    def report(self):
        return {"communicating_s": 0.25}

    def stop(self):
        self._dist.destroy_process_group()


SYSTEM = Sums()
'''

STUDY = """
number = "made-up"
words = ["made"]
title = "One process, and a system of nobody"

[[tables]]
name = "only"
title = "A table"
systems = ["one", "{system}", "{fails}"]
figures = ["images_per_s", "scaling", "accuracy", "communication", "joules"]
plot = "images_per_s"
curves = true
setting = {{ model = "small-mlp", epochs = 2, epoch_s = 0.2, test_images = 200 }}
grid = {{ ranks = [1, 2] }}
quick = {{ rounds = 2 }}

[[published]]
what = "seconds"
figure = "7"
"""


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A folder with study.toml, system.py and fails.py."""
    system = tmp_path / "system.py"
    system.write_text(SYSTEM)
    fails = tmp_path / "fails.py"
    text = SYSTEM.replace("super().start(job)", "raise OSError('so be it')")
    fails.write_text(text.replace('"sums"', '"fails"'))
    (tmp_path / "study.toml").write_text(STUDY.format(system=system, fails=fails))
    return tmp_path


Compare = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """`ciranda compare`, in the test's folder."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["-m", "ciranda", "compare", *arguments]
        return warm.run(command, env=os.environ, cwd=tmp_path, timeout=600)

    return run
