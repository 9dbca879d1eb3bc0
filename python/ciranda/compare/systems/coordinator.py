"""ciranda's parameter servers with a coordinator, which studies call the chief."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ciranda.compare.protocol import say
from ciranda.compare.tasked import Course, Made, Tasked

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload

_BATCHES = 20  # in a task


class Coordinator(Tasked):
    title = "parameter servers, coordinator"

    def make(self, workload: Workload) -> tuple[Any, Any]:
        import ciranda.torch as cr

        model = workload.make_model()
        optimizer, named = workload.make_optimizer(model), model.named_parameters()
        mode = cr.ps.Async()
        return model, cr.DistributedOptimizer(optimizer, named, ps=mode)

    def course(self, workload: Workload, made: Callable[[], Made]) -> Course:
        import torch

        from ciranda.compare.workload import plain_step
        from ciranda.torch import ps

        size = _BATCHES * workload.setting.batch

        @ps.task(name="train")
        def train(epoch: int, first: int) -> int:
            model, optimizer, images, _ = made()
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
            for indices in order[first : first + size].split(workload.setting.batch):
                plain_step(model, optimizer, *images.batch(indices))
            return len(order[first : first + size])

        def go(count: int, look: Callable[[], None]) -> list[dict[str, float]]:
            epochs = []
            for epoch in range(workload.setting.epochs):
                look()
                start = time.perf_counter()
                done = [ps.schedule(train, epoch, first) for first in range(0, count, size)]
                images = sum(each.result() for each in done)
                seconds = time.perf_counter() - start
                epochs.append({"images": images, "of": count, "seconds": seconds})
                say(epoch=epoch + 1, rank=0)
            return epochs

        return go


SYSTEM = Coordinator()
