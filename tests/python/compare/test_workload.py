"""What a process trains: models, images, its share of an epoch, and where an epoch is cut."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ciranda.compare import data, models, protocol, workload
from ciranda.compare.setting import Setting
from ciranda.compare.system import System, load


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mlp", 669_706),
        ("small-mlp", 101_770),
        ("small-cnn", 402_442),
        ("large-cnn", 4_104_202),
        ("mobilenetv2", 2_354_534),
    ],
)
def test_models_have_as_many_parameters_as_they_say(name: str, count: int) -> None:
    model = models.MODELS[name]()
    assert sum(p.numel() for p in model.parameters()) == count
    assert f"{count:,}" in str(models.__dict__[name.replace("-", "_").replace("v2", "_v2")].__doc__)


def test_images_that_are_not_there_are_made_alike_and_say_so(tmp_path: Path) -> None:
    one, two = (data.load("fashion-mnist", "train", 28, str(tmp_path), None) for _ in range(2))
    indices = torch.tensor([0, 1, 59_999])
    assert torch.equal(one.batch(indices)[0], two.batch(indices)[0])
    assert one.batch(indices)[0].shape == (3, 1, 28, 28) and len(one) == 60_000
    assert "Fashion-MNIST is not in" in one.notes[0]
    flowers = data.load("flowers", "test", 32, str(tmp_path), 50)
    assert flowers.batch(indices[:2])[0].shape == (2, 3, 32, 32) and len(flowers) == 50
    assert flowers.notes == ["images are made, from one seed"]


class _Indices(data.Images):
    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return indices, indices


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_share_an_epoch_and_make_equally_many_steps(size: int) -> None:
    images = _Indices(torch.empty(0), torch.zeros(100))
    setting = Setting(ranks=size, batch=7, times=2)
    shares = [list(workload.batches(images, setting, rank, size, 0)) for rank in range(size)]
    assert {len(share) for share in shares} == {workload.epoch_steps(images, setting, size)}
    seen = torch.cat([indices for share in shares for indices, _ in share])
    assert len(seen) == 200 // size * size
    assert seen.bincount().max() == 2  # each image once in each time
    again = torch.cat([indices for indices, _ in workload.batches(images, setting, 0, size, 1)])
    assert not torch.equal(again, torch.cat([indices for indices, _ in shares[0]]))


def test_one_process_with_several_devices_takes_their_batches_together() -> None:
    images = _Indices(torch.empty(0), torch.zeros(100))
    first, _ = next(workload.batches(images, Setting(ranks=2, batch=16), 0, 1, 0))
    assert len(first) == 32


class _AsRankZeroSays(System):
    """Of another rank, which is slow itself; rank 0 makes a step each `step_s`, and the first
    `late_s` later."""

    def __init__(self, step_s: float, late_s: float = 0.0) -> None:
        self.step_s, self.late_s = step_s, late_s
        self.asked: list[int] = []
        self.done = 0

    def same(self, value: float) -> float:
        self.asked.append(self.done)
        return self.late_s + self.done * self.step_s


@pytest.mark.parametrize(
    ("step_s", "late_s", "steps", "asked"),
    [
        (1.0, 0.0, 10, [1, 2, 4, 8]),
        (1.0, 6.0, 4, [1, 2]),
        (0.25, 9.0, 4, [1, 2]),
        (0.125, 8.0, 16, [1, 2, 4, 8]),
        (20.0, 0.0, 1, [1]),
        (6.0, 0.0, 2, [1, 2]),
    ],
)
def test_an_epoch_is_cut_after_as_many_steps_as_rank_0_says(
    step_s: float, late_s: float, steps: int, asked: list[int]
) -> None:
    system = _AsRankZeroSays(step_s, late_s)
    cut = workload._Cut(system, 10.0, 1000)
    while True:
        system.done += 1
        if cut.after(system.done):
            break
    assert (system.done, system.asked) == (steps, asked)


def test_workers_with_synchronous_servers_cut_after_the_same_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(protocol.FOLDER, str(tmp_path))

    def worker(rank: int) -> list[float]:
        system = copy.copy(load("ps_sync"))
        system.rank, system.size = rank, 2
        return [system.same(value + 10.0 * rank) for value in (0.25, 0.5, 1 / 3)]

    with ThreadPoolExecutor(2) as both:
        assert list(both.map(worker, range(2))) == [[0.25, 0.5, 1 / 3]] * 2


def test_an_epoch_without_limit_is_whole_and_nobody_is_asked() -> None:
    system = _AsRankZeroSays(1.0)
    cut = workload._Cut(system, 0.0, 3)
    assert [cut.after(done) for done in (1, 2, 3)] == [False, False, True]
    assert system.asked == []


def test_learning_rates_grow_as_their_schedules_say() -> None:
    rates = {
        name: [
            workload.learning_rate(Setting(lr=1.0, schedule=name), 4, at) for at in (0.0, 0.5, 2.0)
        ]
        for name in ("constant", "linear", "linear, warmed up")
    }
    assert rates["constant"] == [1.0, 1.0, 1.0]
    assert rates["linear"] == [4.0, 4.0, 4.0]
    assert rates["linear, warmed up"] == [1.0, 2.5, 4.0]
