"""Process sets: so far the global one, which every collective takes by default."""

from __future__ import annotations

from ciranda import _C


class ProcessSet:
    """A set of ranks; only `global_process_set` can be used yet."""

    process_set_id: int | None = None

    def __init__(self, ranks: list[int] | None = None) -> None:
        self._ranks = ranks

    @property
    def ranks(self) -> list[int]:
        """The ranks of the set, ascending."""
        return list(range(_C.size())) if self._ranks is None else self._ranks

    def size(self) -> int:
        """Ranks of the set."""
        return len(self.ranks)

    def rank(self) -> int:
        """This rank's number within the set."""
        return self.ranks.index(_C.rank())

    def included(self) -> bool:
        """Whether this rank belongs to the set."""
        return _C.rank() in self.ranks


global_process_set = ProcessSet()
global_process_set.process_set_id = 0


def require_global(process_set: ProcessSet) -> None:
    """Refuses any other set in one sentence."""
    if process_set is not global_process_set:
        raise ValueError("process sets other than global_process_set are not supported yet")
