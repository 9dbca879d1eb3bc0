"""Entering and leaving a job, and this rank's place in it."""

from __future__ import annotations

import atexit
import operator
import os
import secrets
from typing import Any

from ciranda import _C
from ciranda.errors import InvalidArgumentError, UnsupportedError
from ciranda.torch import failure_report
from ciranda.torch.functions import allgather_object
from ciranda.torch.process_sets import ProcessSet, add_process_set, forget_all
from ciranda.torch.ps.evaluator import is_evaluator
from ciranda.torch.ps.stand_in import count_anew

_registered = False
_has_left_elastic_job = False


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job that the launcher started; without a launcher, a job of one rank.

    Blocks until every rank has arrived (CIRANDA_START_TIMEOUT_SECONDS, 30). A second call has no
    effect; after shutdown() it joins anew, unless the job is elastic: then it raises
    InvalidArgumentError. If it raises, this rank has left the job again.

    `comm`: a list of ranks of the job, or an mpi4py communicator. The job of this process then
    consists of those ranks, numbered by their position in the list. Every process passes a list
    that contains it, and all processes of a list pass the same list; otherwise every rank gets a
    ValueError. Raises UnsupportedError in a job on several hosts, unless the list is all ranks in
    order.

    `process_sets`: ProcessSets to add at once, the same on every rank, without duplicates; or
    "dynamic" as in Horovod, which has no effect, because sets may always be added.
    """
    global _registered
    if is_evaluator():
        raise InvalidArgumentError(
            "init: this process is the evaluator of --evaluator and trains nothing; where "
            "ps.is_evaluator() is true, call ps.evaluate() in place of init()"
        )
    if _has_left_elastic_job:
        raise InvalidArgumentError(
            "init: this process has left its elastic job by shutdown(), for good; call shutdown() "
            "at the end of the program, or not at all"
        )
    static = _static_sets(process_sets)
    comm = _check_comm(comm)
    was_there = _C.is_initialized()
    _C.init(with_comm=comm is not None)
    if not _registered:
        atexit.register(_end)
        _registered = True
    failure_report.install()
    if was_there:
        return
    try:
        if comm is not None:
            _restrict_to(comm)
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
    seen: list[list[int] | None] = [None]  # the set of all ranks
    for process_set in process_sets:
        if process_set.given_ranks in seen:
            ranks = "all ranks" if process_set.given_ranks is None else process_set.given_ranks
            raise ValueError(
                f"init: process_sets has a second set of {ranks}; process sets must be unique, and "
                "global_process_set is the one of all"
            )
        seen.append(process_set.given_ranks)
    return list(process_sets)


def _check_comm(comm: Any) -> Any:
    """Returns None for all ranks, a list of ranks, or the mpi4py communicator."""
    if comm is None or hasattr(comm, "Get_group"):
        return comm
    try:
        ranks = [operator.index(rank) for rank in comm]
    except TypeError:
        raise ValueError(
            f"init: comm must be a list of ranks or an mpi4py communicator, not {comm!r}"
        ) from None
    if len(set(ranks)) < len(ranks) or any(rank < 0 for rank in ranks):
        raise ValueError(f"init: comm={ranks} must name ranks of the job, each once")
    return ranks or None  # an empty list means all ranks, as in Horovod


def _restrict_to(comm: Any) -> None:
    """Joins a new job of the ranks of `comm` alone, unless `comm` is all ranks in order."""
    rank, everyone = _C.rank(), list(range(_C.size()))
    ranks = comm
    if not isinstance(comm, list):
        ranks = comm.allgather(rank) if comm else []  # MPI.COMM_NULL is false
    mine = [None if ranks == everyone else ranks, secrets.token_hex(8)]
    told = allgather_object(mine, name="init.comm")
    lists = [everyone if its is None else its for its, _ in told]
    if all(its is everyone for its in lists):
        return
    if problem := _disagreement(lists):
        raise ValueError(
            f"init: {problem}; give every rank a list that contains it, and all ranks of a list "
            "the same list, or start with all ranks: init(process_sets=[ProcessSet([...])])"
        )
    if _C.cross_size() > 1:
        raise UnsupportedError(
            f"init: comm={ranks} is not all ranks in their order, which a job on several hosts "
            "needs; start with all of them: init(process_sets=[ProcessSet([...])])"
        )
    _C.shutdown()
    _init_at(ranks.index(rank), ranks, job_id=told[ranks[0]][1])
    failure_report.launched_as = ranks


def _disagreement(lists: list[list[int]]) -> str:
    for rank, ranks in enumerate(lists):
        if rank not in ranks:
            return f"rank {rank} is not in its comm={ranks}"
        for other in ranks:
            if other >= len(lists):
                return f"rank {rank} has comm={ranks}, but ranks are 0 to {len(lists) - 1}"
            if lists[other] != ranks:
                return f"rank {rank} has comm={ranks}, but rank {other} has comm={lists[other]}"
    return ""


def _init_at(rank: int, ranks: list[int], job_id: str) -> None:
    """Calls _C.init() as if a launcher had started only these ranks, on this host."""
    own, count = str(rank), str(len(ranks))
    place = {"RANK": own, "SIZE": count, "LOCAL_RANK": own, "LOCAL_SIZE": count}
    place |= {"CROSS_RANK": "0", "CROSS_SIZE": "1", "JOB_ID": job_id, "JOB_DIR": ""}
    folder = os.environ.get("CIRANDA_JOB_DIR", "")
    if os.path.isdir(folder):  # otherwise the ranks use a folder named after job_id
        place["JOB_DIR"] = os.path.join(folder, str(ranks[0]))
    timeline = os.environ.get("CIRANDA_TIMELINE") or os.environ.get("HOROVOD_TIMELINE")
    if timeline and timeline != "DYNAMIC" and ranks[0] != 0:
        place["TIMELINE"] = f"{timeline}.comm{ranks[0]}"
    changed = {f"CIRANDA_{name}": value for name, value in place.items()}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        _C.init()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def shutdown() -> None:
    """Leaves the job. Unfinished operations of this rank fail with ShutdownError.

    Other ranks that still need this rank get RankLostError. Called automatically when the
    interpreter exits.
    """
    global _has_left_elastic_job
    if _C.in_elastic_job() and not failure_report.has_raised():
        from ciranda.torch import elastic  # not at the start: it costs an import of torch's data

        elastic.finish()
        _has_left_elastic_job = True
    _C.shutdown()
    forget_all()
    count_anew()
    failure_report.launched_as = None


def _end() -> None:
    has_lost = _C.lost_server() is not None
    shutdown()
    if not has_lost:
        failure_report.say_over()


def is_initialized() -> bool:
    """Returns True between init() and shutdown()."""
    return _C.is_initialized()


def rank() -> int:
    """Returns this rank's number, 0 to size() - 1."""
    return _C.rank()


def size() -> int:
    """Returns the number of ranks of the job."""
    return _C.size()


def local_rank() -> int:
    """Returns this rank's number among the ranks of its host."""
    return _C.local_rank()


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return _C.local_size()


def _hosts_with_local_rank() -> list[int]:
    """Returns the hosts that have a rank with this rank's local rank."""
    return [host for host, ranks in enumerate(_C.hosts()) if len(ranks) > _C.local_rank()]


def cross_rank() -> int:
    """Returns the number of this rank's host among the hosts that have this local rank."""
    return _hosts_with_local_rank().index(_C.cross_rank())


def cross_size() -> int:
    """Returns the number of hosts that have a rank of this local rank.

    This is the number of all hosts if each has the same number of ranks.
    """
    return len(_hosts_with_local_rank())


def is_homogeneous() -> bool:
    """Returns True if every host has the same number of ranks."""
    return len({len(ranks) for ranks in _C.hosts()}) == 1


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Starts to record this rank's operations, for one file of all ranks.

    The file is a Chrome trace (ui.perfetto.dev): each rank is a process, each name a row, and
    events have Horovod's names. `mark_cycles` also marks the points at which operations begin. On
    one host, call it on every rank that shall appear in the file. On several hosts all ranks call
    it, and it waits for them. A second call for the same file has no effect. Raises ValueError
    while another file is being recorded.
    """
    _C.start_timeline(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """Writes what this rank has recorded into the file, beside what other ranks have written.

    The recording was started by start_timeline(), --timeline or CIRANDA_TIMELINE. shutdown() writes
    it too. Blocks for the disk.

    On several hosts all ranks call it, it waits for them, and rank 0 writes the file. If the ranks
    of a host cannot send their part, because a rank is gone, that host keeps file_path.hostN.
    """
    _C.stop_timeline()


def stats() -> dict[str, float]:
    """Returns counters of this rank's blocking calls since init().

    `waiting_s` is the time spent waiting for other ranks, `communicating_s` the time spent copying
    and reducing; `operations` and `bytes` are totals.
    """
    return _C.stats()
