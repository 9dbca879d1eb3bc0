"""Reports an exception of this rank to the launcher and to the other ranks.

`ciranda run` names the culprit from the report's file, which is torchelastic's error file too.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

from ciranda import _C
from ciranda.errors import CirandaError, RankLostError

launched_as: list[int] | None = None  # the launcher's number of each rank, with init(comm=...)
_installed = False
_raised = False  # an exception has reached sys.excepthook
_over_file: Path | None = None  # made by a worker that the launcher started
_own_pid = 0
_COORDINATOR = 1_000_000  # the launcher's number for the coordinator


def _launched(rank: int) -> int:
    return rank if launched_as is None else launched_as[rank]


def install() -> None:
    """Puts the report in front of the current sys.excepthook, once."""
    global _installed, _over_file, _own_pid
    if _installed:
        return
    _installed = True
    folder = os.environ.get("CIRANDA_JOB_DIR")
    if folder and _C.server_count():
        number = _COORDINATOR if _C.coordinates() else _C.rank()
        _over_file, _own_pid = Path(folder) / f"over-{number}", os.getpid()
    show = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        global _raised
        _raised = True
        try:
            _report(kind, value, trace)
        finally:
            show(kind, value, trace)

    sys.excepthook = hook


def has_raised() -> bool:
    """Returns True if an exception ends this process."""
    return _raised


def give_up(why: str) -> None:
    """Takes this rank from the others at once, as an exception does that ends the process."""
    global _raised
    _raised = True
    _C.abort(f"rank {_C.rank()} (pid {os.getpid()}) {why}")


def say_over() -> None:
    """Tells the launcher that this worker has left its servers, at interpreter exit.

    The launcher then counts a later kill of the worker as a success: its work is done.
    """
    if _over_file is not None and not _raised and os.getpid() == _own_pid:
        with contextlib.suppress(OSError):
            _over_file.touch()


def _lost_rank(value: BaseException | None, own_rank: int) -> int | None:
    """Returns the rank whose loss led to `value`, directly or through a chain of exceptions."""
    seen = set()  # a chain may be a ring
    while value is not None and id(value) not in seen:
        if isinstance(value, RankLostError) and value.rank != own_rank:
            return value.rank
        seen.add(id(value))
        value = value.__cause__ or value.__context__
    return None


def _lost_server() -> int | None:
    """Returns the lost server by the launcher's numbering: server k is ~k."""
    server = _C.lost_server()
    return None if server is None else ~server


def _report(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
    if not _C.is_initialized() or issubclass(kind, (KeyboardInterrupt, SystemExit)):
        return
    rank = _COORDINATOR if _C.coordinates() else _C.rank()
    meets = not _C.server_count()  # with servers, ranks do not meet
    pending = _C.pending() if meets else []
    for operation in pending:
        operation["missing_ranks"] = [_launched(each) for each in operation["missing_ranks"]]
    victim_of = _lost_rank(value, rank) if meets else _lost_server()
    first_line = (str(value).splitlines() or [""])[0]
    message = f"{kind.__name__}: {first_line}" if first_line else kind.__name__
    # A rank that has lost another rank does not abort the job: that would hide the loss.
    if victim_of is None and meets:
        _C.abort(f"rank {rank} (pid {os.getpid()}) raised {message}")
    path = os.environ.get("CIRANDA_ERROR_FILE")
    if not path:
        return
    report = {
        "message": {
            "message": message,
            "extraInfo": {
                "py_callstack": "".join(traceback.format_exception(kind, value, trace)),
                "timestamp": str(int(time.time())),
            },
        },
        "ciranda": {
            "rank": _launched(rank),
            "pid": os.getpid(),
            "exception": kind.__name__,
            "victim_of": None if victim_of is None else _launched(victim_of),
            "pending": pending,
            "in": value.tensor or None if isinstance(value, CirandaError) else None,
        },
    }
    try:
        Path(path).write_text(json.dumps(report), encoding="utf-8")
    except OSError as problem:
        print(f"ciranda: cannot write the error report {path}: {problem}", file=sys.stderr)
