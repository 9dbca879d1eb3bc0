"""The folders that a job needs on a host, and their end."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from ciranda.launch.errors import LaunchError


@contextlib.contextmanager
def private_folder() -> Iterator[str]:
    """Where the ranks of one host meet; removed in every case."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    # Short: the path of a Unix socket has to fit into 107 bytes.
    parent = runtime if len(runtime) < 64 and os.access(runtime, os.W_OK | os.X_OK) else "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
    try:
        folder = tempfile.mkdtemp(prefix="ciranda-", dir=parent)
    except OSError as error:
        raise LaunchError(f"cannot make a folder in {parent}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_log_dir(log_dir: str | None) -> str:
    """The folder of that name, or a new one; who makes it sees to its end."""
    try:
        if log_dir is None:
            return tempfile.mkdtemp(prefix="ciranda-logs-")
        os.makedirs(log_dir, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"cannot use the folder '{error.filename}': {error.strerror}") from error
    return os.path.abspath(log_dir)


@contextlib.contextmanager
def temporary_log_dir() -> Iterator[str]:
    folder = make_log_dir(None)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
