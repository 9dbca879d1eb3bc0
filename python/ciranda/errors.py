"""The exceptions of ciranda.

Every message is one sentence that names the object, the place and the remedy. Each class carries
`rank` (the rank at fault, or None) and `tensor` (its name, or ""). docs/errors.md says when each is
raised and what to do.
"""

from __future__ import annotations

__all__ = [
    "CirandaError",
    "DuplicateNameError",
    "ForkedError",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "InvalidArgumentError",
    "MismatchError",
    "NotInitializedError",
    "RankFailedError",
    "RankLostError",
    "ShutdownError",
    "TaskFailedError",
    "TimeoutError",
    "UnsupportedError",
]


class CirandaError(RuntimeError):
    """A collective failed at run time. HorovodInternalError is another name for it."""

    rank: int | None = None
    tensor: str = ""


HorovodInternalError = CirandaError


class MismatchError(CirandaError):
    """Ranks disagree about shape, dtype, op or root. Raised on every rank; the job can go on."""


class RankLostError(CirandaError):
    """Rank `rank` died, raised or shut down while this rank needed it."""

    left = False  # it shut down


class ShutdownError(CirandaError):
    """This rank shut down before the operation was done."""


class ForkedError(CirandaError):
    """A call was made in a child of fork; only the parent is a rank."""


class TimeoutError(CirandaError):
    """Ranks did not show up in time."""


class UnsupportedError(CirandaError):
    """The request is valid, but ciranda does not implement it (yet)."""


class InvalidArgumentError(ValueError):
    """An argument was refused before anything was sent; other ranks are not affected."""

    rank: int | None = None
    tensor: str = ""


class DuplicateNameError(InvalidArgumentError):
    """This rank already has an unfinished operation of the same kind and name."""


class NotInitializedError(InvalidArgumentError):
    """A call was made before init() or after shutdown()."""


class TaskFailedError(RuntimeError):
    """A task of ps.schedule() raised on a worker; the message names the task."""


class RankFailedError(RuntimeError):
    """A rank of ciranda.run() raised (the cause of this error) or ended without a result."""

    def __init__(self, text: str, *, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank


class HostsUpdatedInterrupt(RuntimeError):
    """Ranks join or leave an elastic job: State.commit() and check_host_updates() raise it.

    elastic.run() answers it. With `skip_sync` Horovod does not synchronize the state afterwards;
    ciranda always does.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the ranks of the job change; elastic.run() goes on with the new ones")
        self.skip_sync = skip_sync
