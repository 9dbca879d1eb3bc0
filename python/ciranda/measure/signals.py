"""The signals that end a program which measures."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ending_signals(receive: Callable[[int], None]) -> Iterator[None]:
    """Calls `receive` with each signal that asks the program to end; restores handlers afterwards.

    KeyboardInterrupt would be lost if it arrived in the middle of a fork. What the program was
    started to ignore (by nohup, or by a shell's &) stays ignored. Outside the main thread nothing
    is received, because only the main thread may handle signals.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, lambda got, _: receive(got))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
