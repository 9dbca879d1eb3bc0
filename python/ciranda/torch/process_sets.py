"""Process sets: ranks that run collectives among themselves."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from ciranda import _C
from ciranda.errors import UnsupportedError


class ProcessSet:
    """Ranks of the job that run operations among themselves; add_process_set() makes it usable.

    `ranks_or_comm`: their ranks in the job, or an mpi4py communicator of them; None for all ranks.
    """

    process_set_id: int | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Any = None) -> None:
        self._ranks: list[int] | None = None
        if ranks_or_comm is None:
            return
        ranks = ranks_or_comm
        if hasattr(ranks, "Get_group"):
            self.mpi_comm = ranks
            ranks = ranks.allgather(_C.rank())
        self._ranks = sorted(int(rank) for rank in ranks)
        if not self._ranks or len(set(self._ranks)) < len(self._ranks):
            raise ValueError(
                f"ProcessSet: name at least one rank, and each rank once, not {self._ranks}"
            )

    @property
    def given_ranks(self) -> list[int] | None:
        """The ranks, ascending; None for all ranks of the job."""
        return self._ranks

    @property
    def ranks(self) -> list[int]:
        """The ranks of the set, ascending."""
        return list(range(_C.size())) if self._ranks is None else list(self._ranks)

    def size(self) -> int:
        """Returns the number of ranks in the set."""
        return _C.size() if self._ranks is None else len(self._ranks)

    def rank(self) -> int:
        """Returns this rank's number within the set. Raises ValueError if it is not a member."""
        if self._ranks is None:
            return _C.rank()
        if _C.rank() not in self._ranks:
            raise ValueError(f"rank {_C.rank()} is not a member of {self}")
        return self._ranks.index(_C.rank())

    def included(self) -> bool:
        """Returns True if this rank belongs to the set."""
        return self._ranks is None or _C.rank() in self._ranks

    def alone(self) -> bool:
        """Returns True if this rank reduces alone: it is not a member, or the only one."""
        return self.size() == 1 or not self.included()

    def __repr__(self) -> str:
        ranks = "all" if self._ranks is None else self._ranks
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={ranks})"


global_process_set = ProcessSet()
global_process_set.process_set_id = 0
_added: weakref.WeakSet[ProcessSet] = weakref.WeakSet()


def number_of(process_set: ProcessSet) -> int:
    """Returns the number by which the ranks know the set; raises ValueError if it was not added."""
    number = process_set.process_set_id
    if number is None:
        raise ValueError(
            f"{process_set} is not known to the ranks; call add_process_set() on every rank, or "
            "pass it to init(process_sets=[...])"
        )
    return number


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Makes a set of ranks usable. Every rank of the job calls it, in the same order; blocking.

    Raises on every rank if the ranks pass different sets, or if a set of the same ranks exists.
    Unlike in Horovod, sets may be added whatever init() was given. In an elastic job it raises
    UnsupportedError.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"add_process_set: {process_set} has been added already")
    if _C.in_elastic_job():
        raise UnsupportedError(
            f"add_process_set: {process_set} would have other processes after each change of an "
            "elastic job (ciranda run --min-np); use all ranks, or start the job without --min-np, "
            "--max-np and --spares"
        )
    process_set.process_set_id = _C.add_process_set(process_set.ranks)
    _added.add(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set. Every rank of the job calls it, in the same order; blocking.

    Returns False for the global set and for a set that was not added. Raises on every rank while an
    operation of the set is pending.
    """
    if process_set is global_process_set or process_set.process_set_id is None:
        return False
    _C.remove_process_set(process_set.process_set_id)
    process_set.process_set_id = None
    _added.discard(process_set)
    return True


def forget_all() -> None:
    """Invalidates the numbers of all sets, after shutdown()."""
    for process_set in list(_added):
        process_set.process_set_id = None
    _added.clear()
