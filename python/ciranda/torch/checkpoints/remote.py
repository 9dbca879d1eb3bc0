"""A folder behind fsspec: an object store, for example. Rank 0 writes each checkpoint alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ciranda.errors import InvalidArgumentError
from ciranda.torch.checkpoints.folder import (
    Bytes,
    FolderError,
    explained,
    need_fsspec,
    temporary_copy,
)


class RemoteFolder:
    """Objects have no offsets to write at, so one rank writes them from front to back."""

    each_rank_writes = False

    def __init__(self, url: str) -> None:
        self.url = url
        fsspec = need_fsspec(url)
        try:
            self._files, self._path = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise InvalidArgumentError(f"Checkpoints: {url}: {error}") from error

    def __str__(self) -> str:
        return self.url

    def names(self) -> list[str]:
        try:
            self._files.invalidate_cache()
            paths = self._files.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise FolderError(explained(error, self.url)) from error
        return [os.path.basename(str(path).rstrip("/")) for path in paths]

    def prepare(self, job: str) -> str:
        self._try(self._files.makedirs, self._path, exist_ok=True)
        for name in self.names():
            if ".tmp" in name and name.startswith("step-"):
                self.remove(name)
        return ""

    def sees(self, mark: str) -> bool:
        return True

    def create(self, name: str, size: int) -> None:
        """An object comes to be when it is written."""

    def write(self, name: str, parts: Iterable[tuple[int, Bytes]]) -> None:
        try:
            with self._files.open(self._at(name), "wb") as file:
                for at, content in parts:
                    if file.tell() != at:
                        raise ValueError(f"byte {at} comes after byte {file.tell()}")
                    file.write(content)
        except Exception as error:
            raise FolderError(explained(error, self.url)) from error

    def report(self, name: str, content: Any) -> None:
        """Nobody waits for it: rank 0 writes alone."""

    def reports(self, name: str) -> dict[str, Any]:
        return {}

    def complete(self, name: str, final: str) -> None:
        self._try(self._files.mv, self._at(name), self._at(final))

    def remove(self, name: str) -> None:
        try:
            self._files.rm(self._at(name))
        except FileNotFoundError:
            return
        except Exception as error:
            raise FolderError(explained(error, self.url)) from error

    def local(self, name: str) -> tuple[str, bool]:
        path = temporary_copy()
        try:
            self._files.get_file(self._at(name), path)
        except Exception as error:
            os.unlink(path)
            raise FolderError(explained(error, f"{self.url}/{name}")) from error
        return path, True

    def release(self) -> None:
        """There is no lock."""

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"

    def _try(self, function: Any, *arguments: Any, **named: Any) -> None:
        try:
            function(*arguments, **named)
        except Exception as error:
            raise FolderError(explained(error, self.url)) from error
