"""The model and images of a process, and its training loop. Imports torch.

Accuracy is measured after training, from copies of the parameters that rank 0 has kept, so that it
takes no training time.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ciranda.compare import data, models
from ciranda.compare.protocol import meet, say
from ciranda.compare.setting import Setting
from ciranda.compare.system import System

_SLOWED_DOWN_FROM = 1.0
_WARM_UP_EPOCHS = 1.0
_TEST_BATCH = 500
_TOLD_EVERY_S = 1.0


class Workload:
    """A setting with its model and its images."""

    def __init__(self, setting: Setting, data_folder: str | None) -> None:
        self.setting = setting
        torch.manual_seed(setting.seed)
        torch.set_num_threads(setting.threads)
        self.device = torch.device("cpu")
        self.data_folder = data_folder
        self.after_epoch: Callable[[int], None] | None = None  # called on rank 0

    def use_device(self, local_rank: int) -> torch.device:
        """Selects this rank's GPU if there is one; returns the device."""
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank % torch.cuda.device_count())
            self.device = torch.device("cuda", torch.cuda.current_device())
        return self.device

    def images(self, which: str) -> data.Images:
        count = self.setting.test_images if which == "test" else None
        return data.load(
            self.setting.data, which, self.setting.image_px, self.data_folder, most=count
        )

    def make_model(self) -> nn.Module:
        return models.MODELS[self.setting.model]().to(self.device)

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        parameters, lr = model.parameters(), self.setting.lr
        if self.setting.optimizer == "adagrad":
            return torch.optim.Adagrad(parameters, lr=lr, fused=self.device.type == "cpu")
        if self.setting.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=lr, momentum=0.9, fused=True)
        return torch.optim.Adam(parameters, lr=lr, eps=self.setting.eps, fused=True)


def compute_gradients(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> float:
    """Computes gradients; returns the CPU seconds of this thread."""
    begin = time.thread_time()
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    return time.thread_time() - begin


def plain_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor
) -> float:
    computed_s = compute_gradients(model, optimizer, images, labels)
    optimizer.step()
    return computed_s


def learning_rate(setting: Setting, size: int, epochs_done: float) -> float:
    """Returns the learning rate after `epochs_done` epochs.

    "linear" multiplies the rate of one rank by the number of ranks. "linear, warmed up" rises
    linearly from the rate of one rank to that product. Source: Goyal et al. (2017), "Accurate,
    Large Minibatch SGD".
    """
    if setting.schedule == "constant":
        return setting.lr
    if setting.schedule == "linear":
        return setting.lr * size
    return setting.lr * (1 + (size - 1) * min(1.0, epochs_done / _WARM_UP_EPOCHS))


def batches(
    images: data.Images, setting: Setting, rank: int, size: int, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields this rank's batches of an epoch; every rank has the same number."""
    total = len(images) * setting.times
    order = torch.randperm(
        total, generator=torch.Generator().manual_seed(setting.seed * 1000 + epoch)
    )
    order = order[: total // size * size][rank::size] % len(images)
    together = setting.batch * setting.ranks // size  # one process may feed several devices
    for indices in order.split(together):
        yield images.batch(indices)


def epoch_steps(images: data.Images, setting: Setting, size: int) -> int:
    share = len(images) * setting.times // size
    return math.ceil(share / (setting.batch * setting.ranks // size))


class _Cut:
    """Ends an epoch after about `limit_s` seconds, on all ranks after the same step.

    After 1, 2, 4, 8, … steps rank 0's time gives a new estimate of the number of steps. The first
    step takes longer than others, so each estimate uses only the steps since the last one.
    """

    def __init__(self, system: System, limit_s: float, steps: int) -> None:
        self._system = system
        self._limit_s = limit_s
        self._begin = time.perf_counter()
        self._looked_s, self._looked_at = 0.0, 0
        self.steps = steps
        self._looks_at = 1 if limit_s else 0

    def after(self, done: int) -> bool:
        """Returns true if the epoch ends after `done` steps."""
        if done == self._looks_at and done < self.steps:
            elapsed_s = self._system.same(time.perf_counter() - self._begin)
            left_s = self._limit_s - elapsed_s
            step_s = (elapsed_s - self._looked_s) / (done - self._looked_at)
            fitting = max(done, done + round(left_s / step_s))
            self._looked_s, self._looked_at = elapsed_s, done
            go_on = left_s > 0 if done == 1 else fitting > 2 * done
            self._looks_at = 2 * done if go_on else 0
            if not go_on:
                self.steps = min(self.steps, fitting)
        return done >= self.steps


class _Place:
    """Rank 0 tells each second where it is, also if nobody watches: figures do not depend on it."""

    def __init__(self, system: System, epoch: int) -> None:
        self._system = system
        self._epoch = epoch
        self._told_s = float("-inf")

    def after(self, done: int, steps: int) -> None:
        now = time.perf_counter()
        if self._system.rank == 0 and now - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now
            say(epoch=self._epoch + 1, rank=0, step=done, steps=steps)


class _Keeper:
    """Copies of the parameters on rank 0, to be scored later."""

    def __init__(self, system: System, workload: Workload) -> None:
        self._system = system
        self._every_s = workload.setting.curve_s
        self._begin = time.perf_counter()
        self._kept: list[tuple[float, dict[str, Tensor]]] = []

    def look(self, *, always: bool = False) -> None:
        elapsed_s = time.perf_counter() - self._begin
        due = self._every_s > 0 and elapsed_s >= self._every_s * len(self._kept)
        if self._system.rank == 0 and (due or always):
            state = bare(self._system.model).state_dict()
            self._kept.append((elapsed_s, {name: t.detach().clone() for name, t in state.items()}))

    def curve(self, workload: Workload) -> list[tuple[float, float]]:
        if not self._kept:
            return []
        torch.set_num_threads(max(1, torch.get_num_threads(), workload.setting.ranks))
        model, test = copy.deepcopy(bare(self._system.model)), workload.images("test")
        return [(at, score(model, state, test)) for at, state in self._kept]


def bare(model: nn.Module) -> nn.Module:
    """Returns the model inside DDP's or DataParallel's wrapper."""
    inner = getattr(model, "module", model)
    return inner if isinstance(inner, nn.Module) else model


@torch.no_grad()
def score(model: nn.Module, state: dict[str, Tensor] | None, test: data.Images) -> float:
    """Returns the percentage of correct answers; loads `state` first if it is given."""
    if state is not None:
        model.load_state_dict(state)
    model.eval()
    device = next(model.parameters()).device
    right = 0
    for indices in torch.arange(len(test)).split(_TEST_BATCH):
        images, labels = test.batch(indices)
        right += int((model(images.to(device)).argmax(1) == labels.to(device)).sum())
    model.train()
    return 100.0 * right / len(test)


def train(system: System, workload: Workload) -> None:
    """Trains in epochs of steps, and sends the outcome (protocol.say)."""
    setting = workload.setting
    system.start(workload)
    images = workload.images("train")
    torch.manual_seed(setting.seed + system.rank)  # keeps ranks from dropping the same neurons
    slowness = setting.slowness if system.rank == system.size - 1 > 0 else _SLOWED_DOWN_FROM
    epochs = []
    meet(system.rank, system.size)
    keeper = _Keeper(system, workload)
    begin = time.perf_counter()
    for epoch in range(setting.epochs):
        epochs.append(train_epoch(system, workload, images, epoch, slowness, keeper))
        keeper.look(always=True)
        say(epoch=epoch + 1, rank=system.rank)
        if workload.after_epoch is not None and system.rank == 0:
            workload.after_epoch(epoch + 1)
    total_s = time.perf_counter() - begin
    system.stop()  # at once, so that servers stop waiting for this worker
    outcome: dict[str, Any] = {"epochs": epochs, "total_s": total_s}
    if system.rank == 0:
        outcome["curve"] = keeper.curve(workload)
        outcome["parameters"] = sum(p.numel() for p in bare(system.model).parameters())
        outcome["notes"] = images.notes
        outcome["device"] = str(workload.device)
    say(rank=system.rank, size=system.size, outcome=outcome)


def train_epoch(
    system: System,
    workload: Workload,
    images: data.Images,
    epoch: int,
    slowness: float,
    keeper: _Keeper,
) -> dict[str, float]:
    setting = workload.setting
    steps = epoch_steps(images, setting, system.size)
    system.same(0.0)  # a barrier: ranks begin together
    before, begin = system.report(), time.perf_counter()
    cut, place, seen = _Cut(system, setting.epoch_s, steps), _Place(system, epoch), 0
    for done, (pixels, labels) in enumerate(
        batches(images, setting, system.rank, system.size, epoch), 1
    ):
        for group in system.optimizer.param_groups:
            group["lr"] = learning_rate(setting, system.size, epoch + (done - 1) / steps)
        computed_s = system.step(pixels.to(workload.device), labels.to(workload.device))
        if slowness > _SLOWED_DOWN_FROM:
            time.sleep((slowness - 1.0) * computed_s)
        seen += len(labels)
        keeper.look()
        place.after(done, cut.steps)
        if cut.after(done):
            break
    if workload.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    after = system.report()
    return {
        "images": seen,
        "of": len(images) * setting.times,
        "seconds": seconds,
        **{name: value - before[name] for name, value in after.items()},
    }
