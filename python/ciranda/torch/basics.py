"""init, shutdown and where this rank is."""

from __future__ import annotations

import atexit
from typing import Any

from ciranda import _C
from ciranda.torch import failure_report
from ciranda.torch.process_sets import ProcessSet, add_process_set, forget_all

_registered = False


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job that the launcher started; without a launcher, a world of one rank.

    Blocks until every rank is there (CIRANDA_START_TIMEOUT_SECONDS, 30). A second call has no
    effect; after shutdown() it joins anew. Where it raises, the rank has left the job again.

    `process_sets`: ProcessSets that are added at once, the same on every rank, none twice; or
    "dynamic" as in Horovod, which changes nothing, as sets may always be added.

    `comm`: a list of all ranks or an mpi4py communicator of as many, which change nothing.
    """
    global _registered
    static = _static_sets(process_sets)
    was_there = _C.is_initialized()
    _C.init()
    if not _registered:
        atexit.register(shutdown)
        _registered = True
    failure_report.install()
    if was_there:
        return
    try:
        _check_all_ranks(comm)
        for process_set in static:
            add_process_set(process_set)
    except BaseException:
        shutdown()
        raise


def _static_sets(process_sets: Any) -> list[ProcessSet]:
    if process_sets is None or process_sets == "dynamic":
        return []
    if not isinstance(process_sets, list | tuple) or not all(
        isinstance(process_set, ProcessSet) for process_set in process_sets
    ):
        raise ValueError('init: process_sets must be a list of ProcessSet, or "dynamic"')
    seen: list[list[int] | None] = [None]  # of all ranks
    for process_set in process_sets:
        if process_set.given_ranks in seen:
            ranks = "all ranks" if process_set.given_ranks is None else process_set.given_ranks
            raise ValueError(
                f"init: process_sets has a second set of {ranks}; process sets must be unique, and "
                "global_process_set is the one of all"
            )
        seen.append(process_set.given_ranks)
    return list(process_sets)


def _check_all_ranks(comm: Any) -> None:
    if comm is None:
        return
    count = len(comm) if isinstance(comm, list | tuple) else comm.Get_size()
    if count != _C.size():
        raise ValueError(
            f"init: comm has {count} of the {_C.size()} ranks; start with all of them, and pass "
            "those that work together as process_sets=[ProcessSet([...])]"
        )


def shutdown() -> None:
    """Leaves the job. Unfinished operations of this rank end with ShutdownError.

    Other ranks that still need this one get RankLostError. Called at interpreter exit by itself.
    """
    _C.shutdown()
    forget_all()


def is_initialized() -> bool:
    """True between init() and shutdown()."""
    return _C.is_initialized()


def rank() -> int:
    """This rank's number, 0 to size() - 1."""
    return _C.rank()


def size() -> int:
    """Ranks of the job."""
    return _C.size()


def local_rank() -> int:
    """This rank's number among the ranks of its host."""
    return _C.local_rank()


def local_size() -> int:
    """Ranks on this host."""
    return _C.local_size()


def cross_rank() -> int:
    """The number of this rank's host."""
    return _C.cross_rank()


def cross_size() -> int:
    """Hosts of the job."""
    return _C.cross_size()


def stats() -> dict[str, float]:
    """Since init(), in blocking calls of this rank: `waiting_s` (for other ranks),
    `communicating_s` (copying and reducing), `operations`, `bytes`."""
    return _C.stats()
