"""AsyncDataLoaderMixin: batches are read ahead, and no thread outlives its iteration."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ciranda.torch.data import AsyncDataLoaderMixin, BaseDataLoader


class Squares(BaseDataLoader):
    """Of `count` numbers; an error instead of the one that fails."""

    def __init__(self, count: int, failing: int | None = None) -> None:
        self.count, self.failing, self.read = count, failing, 0
        self.ended = threading.Event()

    def __len__(self) -> int:
        return self.count

    def _iterate(self) -> Iterator[Any]:
        try:
            for number in range(self.count):
                if number == self.failing:
                    raise LookupError("no such file")
                self.read += 1
                yield number
        finally:
            self.ended.set()

    def _process_batch(self, batch: Any) -> Any:
        return batch**2, threading.current_thread().name


class AsyncSquares(AsyncDataLoaderMixin, Squares):
    pass


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ciranda-loader"]


@pytest.mark.parametrize("ahead", [0, 1, 3, 64])
def test_every_epoch_has_all_batches_in_order(ahead: int) -> None:
    loader = AsyncSquares(ahead, False, 20)
    here = threading.current_thread().name
    for _ in range(3):
        assert list(loader) == [(number**2, here) for number in range(20)]
        assert not threads()
    assert len(loader) == 20
    assert list(AsyncSquares(count=0)) == []


def test_it_reads_ahead_but_not_further_than_the_queue() -> None:
    loader = AsyncSquares(async_loader_queue_size=4, count=100)
    iteration = iter(loader)
    next(iteration)
    for _ in range(1000):  # one is taken, four wait, one waits to get in
        if loader.read == 6:
            break
        threading.Event().wait(0.01)
    threading.Event().wait(0.1)
    assert loader.read == 6
    loader.close_async_loader()
    assert list(iteration) == [], "a closed iteration ends"
    assert len(list(loader)) == 100, "another may begin"


@pytest.mark.parametrize("ahead", [0, 1, 64])
def test_an_error_is_raised_where_batches_are_taken(ahead: int) -> None:
    loader, seen = AsyncSquares(ahead, count=9, failing=5), []
    with pytest.raises(LookupError, match="no such file"):
        for batch, _ in loader:
            seen.append(batch)
    assert seen == [0, 1, 4, 9, 16]
    assert not threads()


def test_an_iteration_that_is_left_in_the_middle_ends_its_thread() -> None:
    loader = AsyncSquares(async_loader_queue_size=1, count=1_000_000)
    for batch, _ in loader:
        if batch == 9:
            break
    assert not threads() and loader.ended.is_set()
    with pytest.raises(ZeroDivisionError):
        for batch, _ in loader:
            1 / batch
    loader.close_async_loader()  # where a traceback still holds the iteration
    assert not threads()


def test_two_iterations_go_side_by_side() -> None:
    loader = AsyncSquares(async_loader_queue_size=2, count=50)
    assert [one[0] for one, other in zip(loader, loader, strict=True) if one == other] == [
        number**2 for number in range(50)
    ]


def test_closing_wakes_who_waits_for_a_batch() -> None:
    go_on, waiting = threading.Event(), threading.Event()

    class Slow(AsyncDataLoaderMixin, BaseDataLoader):
        def _iterate(self) -> Iterator[int]:
            waiting.set()
            go_on.wait(60)
            yield 1

    loader, taken = Slow(), []
    consumer = threading.Thread(target=lambda: taken.extend(iter(loader)))
    consumer.start()
    assert waiting.wait(60)
    closer = threading.Thread(target=loader.close_async_loader)
    closer.start()
    go_on.set()
    for thread in (closer, consumer):
        thread.join(60)
        assert not thread.is_alive()
    assert taken in ([], [1]) and not threads()


def test_garbage_of_a_cycle_ends_its_thread() -> None:
    import gc

    loader = AsyncSquares(async_loader_queue_size=1, count=1_000_000)
    cycle: list[Any] = [iter(loader)]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert loader.ended.wait(60)


LEAVES_IN_THE_MIDDLE = """
import sys
import torch
from ciranda.torch.data import AsyncDataLoaderMixin, BaseDataLoader

class Loader(AsyncDataLoaderMixin, BaseDataLoader):
    def _iterate(self):
        while True:
            yield torch.ones(100, 100) @ torch.ones(100, 100)

iteration = iter(Loader())
next(iteration)
sys.exit(3)
"""


def test_a_program_ends_although_it_is_in_the_middle() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LEAVES_IN_THE_MIDDLE], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (3, "")


def test_a_negative_queue_is_refused() -> None:
    with pytest.raises(ValueError, match="async_loader_queue_size must be at least 0, not -1"):
        AsyncSquares(async_loader_queue_size=-1, count=1)
