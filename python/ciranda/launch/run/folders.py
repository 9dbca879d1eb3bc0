"""Makes and removes the folders that a job needs on a host."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence

from ciranda.launch.errors import LaunchError

_PATH_BYTES_MAX = 64  # of the parent, as the path of a Unix socket has to fit into 107 bytes
_TMP = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it


@contextlib.contextmanager
def private_folder() -> Iterator[str]:
    """Makes a private folder, such as that in which a host's ranks meet; always removes it."""
    parents = [os.environ.get("XDG_RUNTIME_DIR", ""), _TMP, os.environ.get("TMPDIR", "")]
    folder = _make_folder("ciranda-", [each for each in parents if len(each) < _PATH_BYTES_MAX])
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_log_dir(log_dir: str | None) -> str:
    """Returns the folder of that name, or a new one, which the caller must remove."""
    try:
        if log_dir is None:
            return _make_folder("ciranda-logs-", [os.environ.get("TMPDIR", ""), _TMP, "/var/tmp"])  # noqa: S108 - see _TMP
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


def _make_folder(prefix: str, parents: Sequence[str]) -> str:
    """Makes a private folder in the first of the parents that is safe and writable."""
    problems = []
    for parent in dict.fromkeys(filter(None, parents)):
        problem = _danger_in(parent)
        if not problem:
            try:
                return tempfile.mkdtemp(prefix=prefix, dir=os.path.abspath(parent))
            except OSError as error:
                problem = error.strerror or "?"
        problems.append(f"{parent}: {problem}")
    raise LaunchError(
        f"no folder can be made for the job ({'; '.join(problems)}); set TMPDIR to the short path "
        "of a folder that is yours alone"
    )


def _danger_in(parent: str) -> str:
    """Returns why another user could replace a folder that we make in `parent`; empty: none could.

    The parent may belong to another user after `su` or `sudo -E`, which keep his variables.
    """
    path = os.path.realpath(parent)
    try:
        trusted = (os.geteuid(), 0, os.stat("/").st_uid)
        while True:
            facts = os.stat(path)
            if facts.st_uid not in trusted:
                return f"{path} belongs to user {facts.st_uid}"
            if facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX:
                return f"others may write in {path}"
            if path == "/":
                return ""
            path = os.path.dirname(path)
    except OSError as error:
        return error.strerror or "?"
