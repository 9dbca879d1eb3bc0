"""The files in which a job's output is kept: a log of each process, and what horovodrun wrote."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.environment import JobPaths
from ciranda.launch.plan.processes import is_rank, name_of

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
STREAMS = ("stdout", "stderr")


class OutputFiles:
    """Open until the stack that it was made with is left."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        paths: JobPaths,
        numbers: Iterable[int],
        *,
        size: int,
        by_stream: str | None,
    ) -> None:
        """`by_stream`: a folder for rank.N/stdout and rank.N/stderr of each of `size` ranks."""
        self._stack = stack
        self._files: dict[tuple[int, int], list[int]] = {}
        width = len(str(size - 1))
        for number in numbers:
            log = self._open(paths.log_file(number))
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
        """Returns what is to be said when a file takes no more; the others go on."""
        said = None
        for fd in list(self._files[number, stream]):
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
