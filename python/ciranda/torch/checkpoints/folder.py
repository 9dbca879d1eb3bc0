"""The folder of checkpoints: on a disk that all ranks see, or wherever fsspec reaches."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterable
from typing import Any, Protocol

from ciranda.errors import CirandaError, InvalidArgumentError

Bytes = bytes | memoryview

_WHOLE = re.compile(r"step-(\d{12,})\.pt")
_OWNER = "owner"
_BLOCK = 8 << 20  # written at a time: a CRC of it is taken while it is in the cache
_SEEN_WITHIN_S = 5.0  # folders of a network may show a new file late
_FREED_AFTER_S = 20.0  # a process that was killed holds its lock until the kernel has ended it


class FolderError(CirandaError):
    """The folder cannot be used, in a sentence."""


def name_of(step: int) -> str:
    return f"step-{step:012d}.pt"


def step_of(name: str) -> int | None:
    """Returns the step of a whole checkpoint's name; None for other names."""
    match = _WHOLE.fullmatch(name)
    return int(match[1]) if match else None


def to_delete(names: Iterable[str], newest: str, keep: int) -> list[str]:
    """Returns the checkpoints to delete once `newest` is whole.

    `newest` stays, whatever its step: others may be damaged.
    """
    others = [name for name in names if step_of(name) is not None and name != newest]
    others.sort(key=lambda name: -(step_of(name) or 0))
    return others[max(keep - 1, 0) :]


class Folder(Protocol):
    """Where checkpoints are. Methods raise FolderError, and block for the disk or network."""

    each_rank_writes: bool  # into one file; if not, rank 0 writes it alone

    def names(self) -> list[str]: ...
    def prepare(self, job: str) -> str: ...  # for writing; returns this process's mark
    def sees(self, mark: str) -> bool: ...
    def create(self, name: str, size: int) -> None: ...
    def write(self, name: str, parts: Iterable[tuple[int, Bytes]]) -> None: ...
    def report(self, name: str, content: Any) -> None: ...
    def reports(self, name: str) -> dict[str, Any]: ...
    def complete(self, name: str, final: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def local(self, name: str) -> tuple[str, bool]: ...  # a path, and whether it is a copy
    def release(self) -> None: ...


def folder_at(path: str | os.PathLike[str]) -> Folder:
    """Returns the folder of a path or of a URL that fsspec knows."""
    text = os.fspath(path)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return DiskFolder(os.path.abspath(os.path.expanduser(text)))
    if scheme == "file":
        return DiskFolder(os.path.abspath(rest))
    from ciranda.torch.checkpoints.remote import RemoteFolder

    return RemoteFolder(text)


def explained(error: BaseException, path: str, size: int = 0) -> str:
    """Returns the failure of a file's operation in a sentence."""
    from ciranda.torch.checkpoints.content import gibibytes

    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        needs = f"; a checkpoint needs {gibibytes(size)}" if size else ""
        return f"no space is left for {path}{needs}, beside those that keep= keeps"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{path} may not be written by this user ({os.strerror(number)})"
    if number == errno.ENOENT:
        return f"{path} is not there (any more): another program may have removed it"
    return f"{path}: {error}"


_held: set[str] = set()  # folders whose lock this process holds


class DiskFolder:
    """A folder that every rank sees under one path: on one host's disk, or a shared one."""

    each_rank_writes = True

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock: int | None = None
        self._size = 0

    def __str__(self) -> str:
        return self.path

    def names(self) -> list[str]:
        try:
            return os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FolderError(explained(error, self.path)) from error

    def prepare(self, job: str) -> str:
        """Makes the folder this process's own; returns a mark that other ranks must see in it.

        What an earlier job has left unfinished is removed. `job`: processes of one job wait for
        each other's lock; that of another job is an error.
        """
        try:
            os.makedirs(self.path, exist_ok=True)
            self._take_lock(job)
            assert self._lock is not None  # noqa: S101
            mark = json.dumps({"job": job, "host": socket.gethostname(), "pid": os.getpid()})
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, mark.encode(), 0)
            for name in os.listdir(self.path):
                if ".tmp" in name and name.startswith("step-"):
                    self.remove(name)
        except OSError as error:
            raise FolderError(explained(error, self.path)) from error
        return mark

    def _take_lock(self, job: str) -> None:
        """Takes a lock that a forked child does not inherit, and that ends with this process."""
        if self._lock is not None:
            return
        real = os.path.realpath(self.path)
        if real in _held:
            raise FolderError(f"another Checkpoints of this process uses {self.path}; close() it")
        # Closing any descriptor of the file would end the lock, so there is only this one.
        lock = os.open(
            os.path.join(self.path, _OWNER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        deadline = time.monotonic() + _FREED_AFTER_S
        while True:
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    os.close(lock)  # a file system without locks
                    raise
                owner = _owner(os.pread(lock, 4096, 0))
                if owner.get("job") != job or time.monotonic() > deadline:
                    os.close(lock)
                    raise FolderError(
                        f"{self.path} is used by another job (process {owner.get('pid', '?')} on "
                        f"host {owner.get('host', '?')}): give each job a folder of its own"
                    ) from None
                time.sleep(0.05)
        self._lock = lock
        _held.add(real)

    def sees(self, mark: str) -> bool:
        """Returns whether this is the folder in which prepare() has left the mark."""
        if self._lock is not None:
            return True
        deadline = time.monotonic() + _SEEN_WITHIN_S
        while True:
            try:
                with open(os.path.join(self.path, _OWNER), encoding="utf-8") as file:
                    if file.read() == mark:
                        return True
            except OSError:
                pass
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)

    def create(self, name: str, size: int) -> None:
        """Makes a file of `size` bytes into which ranks may write."""
        try:
            file = os.open(self._at(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                os.ftruncate(file, size)
            finally:
                os.close(file)
        except OSError as error:
            raise FolderError(explained(error, self.path, size)) from error

    def write(self, name: str, parts: Iterable[tuple[int, Bytes]]) -> None:
        """Writes bytes to their places, and waits until they are on the disk."""
        size = 0
        try:
            file = os.open(self._at(name), os.O_WRONLY)
            try:
                size = os.fstat(file).st_size
                for at, content in parts:
                    _write_all(file, memoryview(content), at)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise FolderError(explained(error, self.path, size)) from error

    def report(self, name: str, content: Any) -> None:
        """Leaves a small file with what this rank has done, whole or not at all."""
        try:
            with open(self._at(name + ".new"), "w", encoding="utf-8") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(self._at(name + ".new"), self._at(name))
        except OSError as error:
            raise FolderError(explained(error, self.path)) from error

    def reports(self, name: str) -> dict[str, Any]:
        """Returns the reports whose names begin with `name`."""
        found = {}
        for each in self.names():
            if each.startswith(name) and not each.endswith(".new"):
                try:
                    with open(self._at(each), encoding="utf-8") as file:
                        found[each] = json.load(file)
                except OSError as error:
                    raise FolderError(explained(error, self.path)) from error
        return found

    def complete(self, name: str, final: str) -> None:
        """Gives the file its final name, for good."""
        try:
            os.rename(self._at(name), self._at(final))
            folder = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise FolderError(explained(error, self.path)) from error

    def remove(self, name: str) -> None:
        try:
            os.unlink(self._at(name))
        except FileNotFoundError:
            return
        except OSError as error:
            raise FolderError(explained(error, self.path)) from error

    def local(self, name: str) -> tuple[str, bool]:
        return self._at(name), False

    def release(self) -> None:
        if self._lock is not None:
            _held.discard(os.path.realpath(self.path))
            os.close(self._lock)
            self._lock = None

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)


def _write_all(file: int, content: memoryview, at: int) -> None:
    while content:
        written = os.pwrite(file, content[:_BLOCK], at)
        content, at = content[written:], at + written


def _owner(content: bytes) -> dict[str, Any]:
    try:
        told = json.loads(content)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def temporary_copy() -> str:
    """Returns the path of a new, empty file of this host."""
    file, path = tempfile.mkstemp(suffix=".pt", prefix="ciranda-")
    os.close(file)
    return path


def need_fsspec(url: str) -> Any:
    """Returns the module, or raises InvalidArgumentError that says how to get it."""
    try:
        import fsspec
    except ImportError:
        raise InvalidArgumentError(
            f"Checkpoints: {url} is not a path of this host; for other places: pip install fsspec "
            "(and for s3:// also s3fs)"
        ) from None
    return fsspec
