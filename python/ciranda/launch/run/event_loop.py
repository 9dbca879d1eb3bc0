"""Makes callbacks when descriptors are ready. One thread, no timers."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from types import TracebackType

_WAIT_MAX_S = 86_400.0  # epoll cannot wait for an unlimited time (--timeout inf)

Call = Callable[[int], None]


class EventLoop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> EventLoop:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._selector.close()

    def watch(self, fd: int, call: Call) -> None:
        """Calls `call` when `fd` has something to read, or is at its end."""
        self._selector.register(fd, selectors.EVENT_READ, call)

    def watch_room(self, fd: int, call: Call) -> None:
        """Calls `call` when `fd` has room to write, or its reader is gone."""
        self._selector.register(fd, selectors.EVENT_WRITE, call)

    def pause(self, fd: int) -> None:
        self._selector.unregister(fd)

    def unwatch(self, fd: int) -> None:
        """Stops watching the descriptor, and closes it."""
        self._selector.unregister(fd)
        os.close(fd)

    def turn(self, timeout_s: float | None) -> None:
        """Waits for events, at most `timeout_s` (None: any time), and makes their callbacks."""
        if timeout_s is not None:
            timeout_s = min(max(0.0, timeout_s), _WAIT_MAX_S)
        # The order of descriptors puts what a rank printed before its traceback on stderr.
        for key, _ in sorted(self._selector.select(timeout_s), key=lambda ready: ready[0].fd):
            if key.fd in self._selector.get_map():  # still watched after earlier callbacks
                key.data(key.fd)
