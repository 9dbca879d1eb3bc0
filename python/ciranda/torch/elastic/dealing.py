"""Who trains on which samples: each sample of a pass counts once, whatever ranks come and go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from ciranda import _C
from ciranda.errors import InvalidArgumentError
from ciranda.torch.data.sampler import DistributedSampler, order_of_epoch


class _Shares(Sampler[list[int]]):
    """This rank's batches from a position of the pass on, as indices into the data set."""

    def __init__(self, order: list[int], batch: int, drop_last: bool) -> None:
        self._order, self._batch, self._drop_last = order, batch, drop_last
        self._done, self._rank, self._size = 0, 0, 1

    def deal(self, done: int, rank: int, size: int) -> None:
        self._done, self._rank, self._size = done, rank, size

    def next_block(self, done: int, size: int) -> int:
        return _C.samples_of_block(len(self._order), done, self._batch, size, self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        done, rank, size = self._done, self._rank, self._size
        while count := self.next_block(done, size):
            begin, end = _C.share_of_block(count, rank, size)
            yield self._order[done + begin : done + end]
            done += count


class Dealer:
    """Deals the samples of one pass over a loader's data set to the ranks of the moment."""

    def __init__(self, loader: DataLoader[Any], seed: int, number: int) -> None:
        check_loader(loader)
        length = len(loader.dataset)  # type: ignore[arg-type]
        is_shuffled = _is_shuffled(loader.sampler)
        order = order_of_epoch(length, seed + number if is_shuffled else None).tolist()
        assert loader.batch_size is not None  # noqa: S101 - by check_loader()
        self._shares = _Shares(order, loader.batch_size, loader.drop_last)
        self._loader = _with_batches(loader, self._shares)
        self._batches: Iterator[Any] | None = None
        self._dealt = (-1, -1, -1)  # position, rank, size of the batch that comes next

    def next(self, done: int, rank: int, size: int) -> tuple[Any, int] | None:
        """Returns this rank's batch at position `done`, and the position after the block."""
        count = self._shares.next_block(done, size)
        if count == 0:
            return None
        if self._batches is None or self._dealt != (done, rank, size):
            self._shares.deal(done, rank, size)
            self._batches = iter(self._loader)
        batch = next(self._batches)
        self._dealt = (done + count, rank, size)
        return batch, done + count


def check_loader(loader: Any) -> None:
    """Raises InvalidArgumentError unless the loader's samples can be dealt."""
    why = ""
    if not isinstance(loader, DataLoader):
        why = f"a {type(loader).__name__} is not a torch DataLoader"
    elif isinstance(loader.dataset, IterableDataset):
        why = "its data set is an IterableDataset, whose samples have no numbers"
    elif loader.batch_size is None:
        why = "it has a batch_sampler, or batch_size=None"
    elif not isinstance(loader.sampler, _SAMPLERS):
        why = f"its sampler is a {type(loader.sampler).__name__}"
    elif isinstance(loader.sampler, RandomSampler) and loader.sampler.replacement:
        why = "its RandomSampler draws with replacement"
    if why:
        raise InvalidArgumentError(
            f"elastic.steps: the loader's samples cannot be dealt anew when ranks change, because "
            f"{why}; give a DataLoader with a data set that has a length, batch_size, and "
            "shuffle=True or False (the batch size is that of each rank)"
        )


_SAMPLERS = (
    RandomSampler,
    SequentialSampler,
    DistributedSampler,
    torch.utils.data.DistributedSampler,
)


def _is_shuffled(sampler: Any) -> bool:
    return isinstance(sampler, RandomSampler) or bool(getattr(sampler, "shuffle", False))


def _with_batches(loader: DataLoader[Any], batches: Sampler[list[int]]) -> DataLoader[Any]:
    """Returns a loader like `loader`, which takes the indices of its batches from `batches`."""
    workers: dict[str, Any] = {}
    if loader.num_workers:
        workers = {
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
            "timeout": loader.timeout,
        }
    return DataLoader(
        loader.dataset,
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        **workers,
    )
