"""The files of a call of ciranda.run(): the function, and each rank's outcome.

This module treats their content as bytes. The files lie in a private folder on the caller's host,
and in the agent's log folder on other hosts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

FOLDER = "CIRANDA_FUNCTION_DIR"  # variable: the folder of the call and the outcomes
_CHUNK_BYTES = 1024 * 1024


def call_file(folder: str) -> str:
    return os.path.join(folder, "call")


def outcome_file(folder: str, rank: int) -> str:
    return os.path.join(folder, f"outcome-{rank}")


def read(path: str) -> bytes:
    """Returns the whole file; raises PermissionError if another user may have written it."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        facts = os.fstat(file.fileno())
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
            raise PermissionError(
                f"{path} is not read, because it belongs to user {facts.st_uid} or other users "
                "may write it"
            )
        return file.read()


def chunks_of(path: str) -> Iterator[bytes]:
    """Yields the file in chunks for take(), an empty one last; nothing if there is no file."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
        yield b""


def take(path: str, chunk: bytes) -> None:
    """Appends to `path`.part; an empty chunk renames it, so that `path` is whole or absent."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with open(os.open(f"{path}.part", flags, 0o600), "wb") as file:
        file.write(chunk)
    if not chunk:
        os.rename(f"{path}.part", path)


def write(path: str, content: bytes) -> None:
    for chunk in (content, b""):
        take(path, chunk)
