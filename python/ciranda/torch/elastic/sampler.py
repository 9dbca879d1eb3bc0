"""Horovod's sampler: each rank's share of the samples that no rank has trained on in this epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

from torch.utils.data import Sampler

from ciranda import _C
from ciranda.errors import InvalidArgumentError
from ciranda.torch.data.partition import share
from ciranda.torch.data.sampler import order_of_epoch
from ciranda.torch.functions import allgather_object


class ElasticSampler(Sampler[int]):
    """Deals the samples of an epoch to the ranks, and deals the rest anew when ranks change.

    Pass it to the TorchState, call record_batch() after each batch, and set_epoch() at the end of
    each epoch. Every rank gets the same number of samples: at the end some are repeated. Not
    thread-safe.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_num = 0  # samples, from the beginning of the epoch's order
        self._named: set[int] = set()  # indices from record_indices()
        self._by_name = False  # the program calls record_indices()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: forgets what has been processed. Call it at the end of the one before.

        An epoch that goes on after a change of ranks would otherwise begin again.
        """
        self.epoch = epoch
        self.processed_num = 0
        self._named.clear()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Counts a batch of `batch_size` samples on every rank as processed."""
        if self._named:
            self._refuse_both()
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Iterable[int]) -> None:
        """Counts these samples of this rank as processed, instead of record_batch().

        Every rank calls it, or none. The commit of a TorchState unites what the ranks have counted.
        """
        if self.processed_num:
            self._refuse_both()
        self._by_name = True
        self._named.update(int(index) for index in indices)

    def _refuse_both(self) -> None:
        raise InvalidArgumentError(
            "ElasticSampler: record_batch() and record_indices() in one epoch would count samples "
            "twice; call only one of them"
        )

    @property
    def processed_indices(self) -> set[int]:
        """The samples that are processed in this epoch: by this rank, or united by a commit."""
        return self._named | set(self._order()[: self.processed_num])

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "processed_num": self.processed_num,
            "processed_indices": sorted(self._named),
            "by_name": self._by_name,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over a state, and deals the rest to the ranks of now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self._named = set(state_dict.get("processed_indices", ()))
        self._by_name = state_dict.get("by_name", False)
        self.reset()

    def unite(self) -> None:
        """Gives every rank the samples that any rank has counted by name. Collective."""
        if self._by_name and _C.size() > 1:
            named = allgather_object(sorted(self._named), "elastic.sampler")
            self._named = set().union(*named)

    def reset(self) -> None:
        """Deals what is not processed to the ranks of now."""
        self.num_replicas, self.rank = _C.size(), _C.rank()
        left = self._order()[self.processed_num :]
        self.remaining_indices = [index for index in left if index not in self._named]
        self.num_samples = len(self._share())
        self.total_size = self.num_samples * self.num_replicas

    def _order(self) -> list[int]:
        seed = self.seed + self.epoch if self.shuffle else None
        return order_of_epoch(len(self.dataset), seed).tolist()

    def __iter__(self) -> Iterator[int]:
        # A copy: the samples of an iteration stay the same if reset() is called meanwhile.
        left = self.remaining_indices
        return iter([left[position % len(left)] for position in self._share()])

    def _share(self) -> range:
        return share(len(self.remaining_indices), 0, self.rank, self.num_replicas, "pad")

    def __len__(self) -> int:
        return self.num_samples
