"""Each rank's share of a data set, another order every epoch; training resumes within one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from ciranda import _C
from ciranda.torch.data.partition import Ending, done, share


class DistributedSampler(Sampler[int]):
    """As torch's DistributedSampler: the same arguments and order, and rank and size by itself.

    What of `dataset` (any with a length) does not divide by the ranks: by default a few samples are
    repeated; drop_last=True leaves them out; with uneven=True the first ranks have one more, and
    every sample is there once (docs/training.md says how ranks with fewer batches train).

    A checkpoint within an epoch: call advance(len(batch)) after each step and save state_dict();
    load_state_dict() on every rank, also of another number, shares out what is left.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        uneven: bool = False,
    ) -> None:
        self.num_replicas = _C.size() if num_replicas is None else num_replicas
        self.rank = _C.rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"DistributedSampler: rank {self.rank} is none of {self.num_replicas} ranks; give "
                "both of one process set, or neither"
            )
        if drop_last and uneven:
            raise ValueError(
                "DistributedSampler: drop_last leaves samples out and uneven keeps all; give one"
            )
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.ending: Ending = "drop" if drop_last else "uneven" if uneven else "pad"
        self.epoch = 0
        self._start = 0  # of the epoch's order: before it all is done
        self._advanced = 0  # samples of this rank since

    def set_epoch(self, epoch: int) -> None:
        """Before each epoch, the same number on every rank. That of a loaded state goes on where
        the state was saved; any other begins at its beginning."""
        if epoch != self.epoch:
            self.epoch, self._start, self._advanced = epoch, 0, 0

    def advance(self, samples: int) -> None:
        """This rank has trained on so many samples more. No loader knows: it reads ahead."""
        self._advanced += samples

    def __len__(self) -> int:
        """What an iteration gives: this rank's samples of the epoch, or of what a loaded state has
        left."""
        return len(self._share())

    def __iter__(self) -> Iterator[int]:
        self._advanced = 0
        mine, length = self._share(), len(self.dataset)
        places = torch.arange(mine.start, mine.stop, mine.step, device="cpu") % max(length, 1)
        if self.shuffle:
            generator = torch.Generator(device="cpu").manual_seed(self.seed + self.epoch)
            places = torch.randperm(length, generator=generator, device="cpu")[places]
        return iter(places.tolist())

    def _share(self) -> range:
        return share(len(self.dataset), self._start, self.rank, self.num_replicas, self.ending)

    def state_dict(self) -> dict[str, Any]:
        """Where all ranks are, told by what this one has trained on. All have made the same number
        of steps, with batches of the same size; with uneven=True, save rank 0's."""
        length = len(self.dataset)
        return {
            "epoch": self.epoch,
            "done": done(length, self._start, self._advanced, self.num_replicas),
            "length": length,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on there, the same state on every rank; the order is the state's. ValueError where
        it is of a data set of another length."""
        if state["length"] != len(self.dataset):
            raise ValueError(
                f"DistributedSampler: the state is of {state['length']} samples, the data set has "
                f"{len(self.dataset)}; go on with the data that it was saved with"
            )
        self.shuffle, self.seed = state["shuffle"], state["seed"]
        self.epoch, self._start, self._advanced = state["epoch"], state["done"], 0
