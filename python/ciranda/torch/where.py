"""Shows what this rank does, for people who wait for it."""

from __future__ import annotations

import sys
import threading
import traceback

from ciranda import _C
from ciranda.errors import NotInitializedError


def show() -> None:
    """Writes the stack of each thread of the program to stderr, the main thread first.

    A separate thread calls it when other ranks warn that they wait for this rank.
    """
    try:
        rank = _C.rank()
    except NotInitializedError:  # the job has ended meanwhile
        return
    own, main = threading.get_ident(), threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sorted(sys._current_frames().items(), key=lambda each: each[0] != main)
    lines = [f"ciranda: rank {rank}: other ranks wait for this one, which is here:\n"]
    for thread, frame in frames:
        if thread != own:
            lines.append(f"  thread {names.get(thread, thread)}\n")
            lines += [f"  {line}" for line in traceback.format_stack(frame)]
    sys.stderr.write("".join(lines))
    sys.stderr.flush()
