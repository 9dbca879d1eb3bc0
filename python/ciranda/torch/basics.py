"""init, shutdown and where this rank is."""

from __future__ import annotations

import atexit
from typing import Any

from ciranda import _C
from ciranda.torch import failure_report

_registered = False


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job that the launcher started; without a launcher, a world of one rank.

    Blocks until every rank is there (CIRANDA_START_TIMEOUT_SECONDS, 30). A second call has no
    effect; after shutdown() it joins anew. `comm` and `process_sets` exist for Horovod's scripts
    and must be left alone.
    """
    global _registered
    if comm is not None or process_sets is not None:
        raise ValueError("init: comm and process_sets are not supported yet; call init()")
    _C.init()
    if not _registered:
        atexit.register(shutdown)
        _registered = True
    failure_report.install()


def shutdown() -> None:
    """Leaves the job. Unfinished operations of this rank end with ShutdownError.

    Other ranks that still need this one get RankLostError. Called at interpreter exit by itself.
    """
    _C.shutdown()


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
