"""A small process that renews the agents' leases as long as the launcher lives.

The launcher itself may be held up by Ctrl-Z, or by a terminal that takes no more output.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from ciranda.launch.remote import frames
from ciranda.launch.remote.agent import BEAT_S
from ciranda.launch.run import process_tree
from ciranda.launch.run.ending import REASONS
from ciranda.launch.run.supervisor import HAND_ON


def fork_pulse(pipes: Sequence[int]) -> int:
    """Forks a process that sends beats into `pipes`. Returns its pid, for the caller to kill.

    The pipes must be non-blocking.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            signal.set_wakeup_fd(-1)
            for each in (*REASONS, *HAND_ON):
                signal.signal(each, signal.SIG_IGN)
            os.setsid()
            process_tree.die_with_parent(parent)
            process_tree.set_name("ciranda-pulse")
            _beat(list(pipes))
        finally:
            os._exit(0)
    return pid


def _beat(pipes: list[int]) -> None:
    beat = frames.frame(frames.BEAT)
    while pipes:
        for pipe in list(pipes):
            try:
                os.write(pipe, beat)  # so few bytes are written as a whole or not at all
            except BlockingIOError:
                pass
            except OSError:  # that agent has ended
                pipes.remove(pipe)
        time.sleep(BEAT_S)
