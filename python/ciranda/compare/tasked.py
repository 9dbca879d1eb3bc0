"""Base of systems with a coordinator, which schedules tasks on workers and reports the outcome.

Imports torch only in workers.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ciranda.compare.protocol import say
from ciranda.compare.system import Processes, System

if TYPE_CHECKING:
    from ciranda.compare.workload import Workload


class Made(NamedTuple):
    """The objects of one worker."""

    model: Any
    tool: Any  # brings gradients to the servers
    train: Any
    test: Any


# Trains, and returns its epochs. The arguments are the number of images, and a callback that
# measures accuracy. The caller measures the final accuracy.
Course = Callable[[int, Callable[[], None]], list[dict[str, float]]]


class Tasked(System):
    processes = Processes("ciranda", servers=True, coordinator=True)
    ranks_min = 2
    networks = ("host",)

    @abstractmethod
    def make(self, workload: Workload) -> tuple[Any, Any]:
        """Returns model and tool of a worker."""

    @abstractmethod
    def course(self, workload: Workload, made: Callable[[], Made]) -> Course:
        """Defines the tasks; returns the function that schedules them."""

    def train(self, workload: Workload) -> None:
        import ciranda.torch as cr
        from ciranda.compare.workload import score
        from ciranda.torch import ps

        made = ps.per_worker(
            lambda: Made(*self.make(workload), workload.images("train"), workload.images("test"))
        )

        @ps.task(name="facts")
        def facts() -> list[int]:
            return [len(made().train), sum(p.numel() for p in made().model.parameters())]

        @ps.task(name="accuracy")
        def accuracy() -> float:
            return score(made().model, None, made().test)

        course = self.course(workload, made)

        def main() -> None:
            count, parameters = ps.schedule(facts).result()
            begin, curve = time.perf_counter(), []

            def look() -> None:
                at = time.perf_counter() - begin
                curve.append((at, ps.schedule(accuracy).result()))

            outcome: dict[str, Any] = {"epochs": course(count, look)}
            outcome |= {"total_s": time.perf_counter() - begin, "curve": curve}
            look()
            say(rank=0, size=1, outcome={**outcome, "parameters": parameters, "notes": []})

        cr.init()
        ps.run(main)
