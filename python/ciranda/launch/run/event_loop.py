"""Calls what waits for descriptors. One thread, no timers of its own."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from types import TracebackType

_WAIT_MAX_S = 86_400.0  # epoll cannot wait for ever and a day (--timeout inf)

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
        """Calls when there is something to read, or the end."""
        self._selector.register(fd, selectors.EVENT_READ, call)

    def watch_room(self, fd: int, call: Call) -> None:
        """Calls when there is room to write, or nobody reads any more."""
        self._selector.register(fd, selectors.EVENT_WRITE, call)

    def pause(self, fd: int) -> None:
        self._selector.unregister(fd)

    def unwatch(self, fd: int) -> None:
        """Closes the descriptor too."""
        self._selector.unregister(fd)
        os.close(fd)

    def turn(self, timeout_s: float | None) -> None:
        """Waits for events, at most so long, and makes their calls."""
        if timeout_s is not None:
            timeout_s = min(max(0.0, timeout_s), _WAIT_MAX_S)
        # In the order of their numbers: what a rank printed comes before its traceback.
        for key, _ in sorted(self._selector.select(timeout_s), key=lambda ready: ready[0].fd):
            if key.fd in self._selector.get_map():  # not given up by an earlier call
                key.data(key.fd)
