"""The files of a job's output: a log of each process, and files as horovodrun writes them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.environment import JobPaths
from ciranda.launch.plan.processes import is_rank, name_of

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
STREAMS = ("stdout", "stderr")
FOLLOWS = "--- ciranda: "  # begins the line in a log that separates two processes of one number


class OutputFiles:
    """The files of one job, open until `stack` is left."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        paths: JobPaths,
        numbers: Iterable[int],
        *,
        size: int,
        by_stream: str | None,
    ) -> None:
        """`by_stream`: a folder for rank.N/stdout and rank.N/stderr of `size` ranks; None: none."""
        self._stack = stack
        self._files: dict[tuple[int, int], list[int]] = {}
        self._logs: dict[int, int] = {}
        self._last_bytes: dict[int, bytes] = {}  # of each log
        width = len(str(size - 1))
        for number in numbers:
            log = self._logs[number] = self._open(paths.log_file(number))
            with contextlib.suppress(FileNotFoundError):  # of an earlier job in this folder
                os.unlink(paths.error_file(number))
            for stream, name in enumerate(STREAMS, start=1):
                files = self._files[number, stream] = [log]
                if by_stream is not None and is_rank(number):
                    path = os.path.join(by_stream, f"rank.{number:0{width}}", name)
                    files.append(self._open(path))

    def _open(self, path: str) -> int:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            fd = os.open(path, _FLAGS, 0o644)
        except OSError as error:
            raise LaunchError(f"cannot write '{path}': {error.strerror}") from error
        self._stack.callback(os.close, fd)
        return fd

    def write(self, number: int, stream: int, chunk: bytes) -> str | None:
        """Writes to the files of a stream. Returns a message if a file takes no more, else None.

        The failed file gets no more output; other files still do.
        """
        self._last_bytes[number] = chunk[-1:]
        return self._write(number, self._files[number, stream], chunk)

    def separate(self, number: int, text: str) -> str | None:
        """Writes a line into a log, before the output of another process of this number.

        Returns a message as write() does.
        """
        line_end = b"" if self._last_bytes.get(number, b"\n") == b"\n" else b"\n"
        self._last_bytes[number] = b"\n"
        log = [fd for fd in self._files[number, 1] if fd == self._logs[number]]
        return self._write(number, log, line_end + f"{FOLLOWS}{text} ---\n".encode())

    def _write(self, number: int, fds: Iterable[int], chunk: bytes) -> str | None:
        said = None
        for fd in list(fds):
            view = memoryview(chunk)
            try:
                while view:
                    view = view[os.write(fd, view) :]
            except OSError as error:
                for files in self._files.values():
                    with contextlib.suppress(ValueError):
                        files.remove(fd)
                said = f"the log of {name_of(number)} ends here: {error.strerror}"
        return said
