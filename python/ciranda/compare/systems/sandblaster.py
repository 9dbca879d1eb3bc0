"""Sandblaster L-BFGS (Dean et al., 2012): the gradient of all images, computed in portions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ciranda.compare.tasked import Course, Made, Tasked

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload

_PORTION = 5_000  # images


class Sandblaster(Tasked):
    title = "parameter servers, Sandblaster L-BFGS"

    def make(self, workload: Workload) -> tuple[Any, Any]:
        from ciranda.torch import ps

        return (model := workload.make_model()), ps.Sandblaster(model.named_parameters())

    def course(self, workload: Workload, made: Callable[[], Made]) -> Course:
        import torch
        from torch.nn.functional import cross_entropy

        from ciranda.torch import ps

        @ps.task(name="portion", copies=2)
        def portion(first: int) -> float:
            model, gradients, images, _ = made()
            pixels, labels = images.batch(torch.arange(first, min(first + _PORTION, len(images))))
            model.eval().zero_grad()  # without dropout the loss is one function of the parameters
            loss = cross_entropy(model(pixels), labels, reduction="sum") / len(images)
            loss.backward()
            gradients.push()
            return float(loss)

        def go(count: int, look: Callable[[], None]) -> list[dict[str, float]]:
            begin, passes = time.perf_counter(), 0

            def portions() -> list[Any]:
                nonlocal passes
                if time.perf_counter() - begin > workload.setting.limit_s():
                    raise TimeoutError
                passes += 1
                return [ps.schedule(portion, first) for first in range(0, count, _PORTION)]

            with contextlib.suppress(TimeoutError):
                ps.lbfgs(portions, max_iter=10**6, tolerance_change=0.0)
            return [{"images": passes * count, "of": count, "seconds": time.perf_counter() - begin}]

        return go


SYSTEM = Sandblaster()
