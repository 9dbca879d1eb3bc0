"""What ciranda raises. Every text is one sentence that names what, where and what to do.

Each class carries `rank` (the rank at fault, or None) and `tensor` (its name, or "").
docs/errors.md says when each is raised and what to do.
"""

from __future__ import annotations

__all__ = [
    "CirandaError",
    "DuplicateNameError",
    "ForkedError",
    "HorovodInternalError",
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
    """A collective failed at run time; Horovod's HorovodInternalError."""

    rank: int | None = None
    tensor: str = ""


HorovodInternalError = CirandaError


class MismatchError(CirandaError):
    """Ranks disagree about shape, dtype, op or root. Raised on every rank; the job can go on."""


class RankLostError(CirandaError):
    """Rank `rank` died, raised or shut down while this rank needed it."""


class ShutdownError(CirandaError):
    """This rank shut down before the operation was done."""


class ForkedError(CirandaError):
    """Called in a child made by fork; only the parent is a rank."""


class TimeoutError(CirandaError):
    """Ranks did not show up in time."""


class UnsupportedError(CirandaError):
    """Understood, but not built (yet)."""


class InvalidArgumentError(ValueError):
    """An argument was refused before anything was sent; other ranks are not affected."""

    rank: int | None = None
    tensor: str = ""


class DuplicateNameError(InvalidArgumentError):
    """This rank already has an unfinished operation of the same kind and name."""


class NotInitializedError(InvalidArgumentError):
    """Before init() or after shutdown()."""


class TaskFailedError(RuntimeError):
    """A task that ps.schedule() has given to a worker has raised there; the text says which."""


class RankFailedError(RuntimeError):
    """Of ciranda.run(): `rank` raised, which is the cause, or ended without a result."""

    def __init__(self, text: str, *, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank
