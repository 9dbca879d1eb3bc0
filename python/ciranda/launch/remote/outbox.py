"""Buffers bytes for a pipe with a slow reader. Never blocks."""

from __future__ import annotations

import os

from ciranda.launch.run.event_loop import EventLoop


class Outbox:
    """The bytes on their way into one pipe.

    It drops bytes once the reader is gone. The pipe in the other direction reports that end.
    """

    def __init__(self, fd: int, loop: EventLoop) -> None:
        """Takes over `fd`, which close() closes."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._loop = loop
        self._waiting = bytearray()
        self._open = True

    @property
    def size_bytes(self) -> int:
        return len(self._waiting)

    @property
    def fd(self) -> int:
        return self._fd

    def send(self, chunk: bytes) -> None:
        if not self._open:
            return
        was_empty = not self._waiting
        self._waiting += chunk
        if was_empty:
            self._write()
            if self._waiting:
                self._loop.watch_room(self._fd, self._on_room)

    def close(self) -> None:
        if self._open:
            if self._waiting:
                self._loop.pause(self._fd)
            self._waiting.clear()
            self._open = False
            os.close(self._fd)

    def _on_room(self, fd: int) -> None:
        self._write()
        if not self._waiting:
            self._loop.pause(fd)

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._waiting.clear()
