"""Each rank's share of a data set, in another order every epoch; it can resume within one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from ciranda import _C
from ciranda.torch.data.partition import Ending, done, share


def order_of_epoch(length: int, seed: int | None) -> torch.Tensor:
    """Returns the indices of the samples in the order of the seed; in their own without one."""
    if seed is None:
        return torch.arange(length, device="cpu")
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randperm(length, generator=generator, device="cpu")


class DistributedSampler(Sampler[int]):
    """torch's DistributedSampler with the same arguments and order; knows rank and size itself.

    `dataset` may be any object with a length. If its length does not divide by the ranks, a few
    samples are repeated by default; drop_last=True leaves them out; with uneven=True the first
    ranks have one sample more, and every sample occurs once (docs/training.md says how ranks with
    fewer batches train). Raises ValueError for drop_last with uneven, and for a rank outside of
    `num_replicas`.

    For a checkpoint within an epoch, call advance(len(batch)) after each step and save
    state_dict(). load_state_dict() on every rank shares out the rest, also among another number of
    ranks.
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
                f"DistributedSampler: rank {self.rank} is not one of {self.num_replicas} ranks; "
                "give rank and num_replicas of one process set, or neither"
            )
        if drop_last and uneven:
            raise ValueError(
                "DistributedSampler: drop_last leaves samples out and uneven keeps all samples; "
                "give only one of them"
            )
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.ending: Ending = "drop" if drop_last else "uneven" if uneven else "pad"
        self.epoch = 0
        self._start = 0  # position in the order: all before it is done
        self._advanced = 0  # samples of this rank since _start

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch; call it before each epoch with the same number on every rank.

        The epoch of a loaded state resumes where the state was saved; any other starts at its
        beginning.
        """
        if epoch != self.epoch:
            self.epoch, self._start, self._advanced = epoch, 0, 0

    def advance(self, samples: int) -> None:
        """Counts `samples` more that this rank has trained on.

        A loader cannot count them, because it reads ahead.
        """
        self._advanced += samples

    def __len__(self) -> int:
        """Returns this rank's number of samples in an iteration, of the epoch or a resumed rest."""
        return len(self._share())

    def __iter__(self) -> Iterator[int]:
        self._advanced = 0
        mine, length = self._share(), len(self.dataset)
        places = torch.arange(mine.start, mine.stop, mine.step, device="cpu") % max(length, 1)
        order = order_of_epoch(length, self.seed + self.epoch if self.shuffle else None)
        return iter(order[places].tolist())

    def _share(self) -> range:
        return share(len(self.dataset), self._start, self.rank, self.num_replicas, self.ending)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of all ranks in the epoch, computed from this rank's samples.

        All ranks must have made the same number of steps, with batches of the same size; with
        uneven=True, save rank 0's state.
        """
        length = len(self.dataset)
        return {
            "epoch": self.epoch,
            "done": done(length, self._start, self._advanced, self.num_replicas),
            "length": length,
            "shuffle": self.shuffle,
            "seed": self.seed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes at a saved position and order; load the same state on every rank.

        Raises ValueError if the state is of a data set of another length.
        """
        if state["length"] != len(self.dataset):
            raise ValueError(
                f"DistributedSampler: the state belongs to {state['length']} samples, the data "
                f"set has {len(self.dataset)}; load the state with the data set that it was "
                "saved with"
            )
        self.shuffle, self.seed = state["shuffle"], state["seed"]
        self.epoch, self._start, self._advanced = state["epoch"], state["done"], 0
