"""Reads a checkpoint: only one whose every byte has the CRC-32 that it was written with."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterable
from typing import Any, BinaryIO

import torch

from ciranda.errors import CirandaError
from ciranda.torch.checkpoints.folder import Folder, step_of
from ciranda.torch.checkpoints.layout import ROOT, Layout
from ciranda.torch.checkpoints.state import FORMAT

_BLOCK = 1 << 20  # its CRC is taken while it is in the cache


class DamagedError(CirandaError):
    """The file is not the checkpoint that was written."""


def newest_first(names: Iterable[str]) -> list[str]:
    """Returns the names of whole checkpoints, the newest first."""
    whole = [name for name in names if step_of(name) is not None]
    return sorted(whole, key=lambda name: -(step_of(name) or 0))


def verify(path: str) -> None:
    """Raises DamagedError for a file that was cut or changed, CirandaError for another format."""
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            described = json.loads(archive.read(f"{ROOT}/ciranda.json"))
            if described["format"] != FORMAT:
                raise CirandaError(
                    f"{path} has format {described['format']}, and this ciranda reads format "
                    f"{FORMAT}: read it with the version of ciranda that wrote it"
                )
            _verify_bytes(archive, file)
    except CirandaError:
        raise
    except _OF_BROKEN_ARCHIVES as error:
        raise DamagedError(f"{path} is damaged ({error})") from error
    except OSError as error:
        raise CirandaError(f"{path}: {error.strerror or error}") from error


_OF_BROKEN_ARCHIVES = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    NotImplementedError,  # an unknown method of compression
    RuntimeError,  # encrypted
    ValueError,
)


def _verify_bytes(archive: zipfile.ZipFile, file: BinaryIO) -> None:
    """Raises ValueError unless each byte of the file is the one that was written.

    Sizes and CRCs tell what headers and directory were, so these are compared whole.
    """
    entries = archive.infolist()
    tensors = [entry for entry in entries if entry.filename.startswith(f"{ROOT}/data/")]
    known = [
        (entry.filename.removeprefix(f"{ROOT}/"), archive.read(entry), entry.CRC)
        for entry in entries[len(tensors) :]
    ]
    crcs = [entry.CRC for entry in tensors]
    layout = Layout([entry.file_size for entry in tensors])
    tail = layout.tail(crcs, known)
    for (at, header), record, crc in zip(layout.headers(crcs), layout.records, crcs, strict=True):
        file.seek(at)
        if file.read(len(header)) != header:
            raise ValueError(f"the header of {record.name} is not what was written")
        if _crc_of(file, record.size) != crc:
            raise ValueError(f"{record.name} has not the CRC that was written")
    file.seek(layout.end)
    if file.read(len(tail) + 1) != tail:
        raise ValueError("the directory at its end is not what was written")


def _crc_of(file: BinaryIO, size: int) -> int:
    crc = 0
    while size > 0:
        block = file.read(min(size, _BLOCK))
        if not block:
            raise ValueError("it is cut")
        crc, size = zlib.crc32(block, crc), size - len(block)
    return crc


def load(path: str) -> dict[str, Any]:
    """Returns the content of a verified file. Its tensors are mapped from the file."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # type: ignore[no-any-return]


def read(folder: Folder, name: str) -> dict[str, Any]:
    """Verifies and loads a checkpoint. Raises DamagedError or CirandaError."""
    path, is_copy = folder.local(name)
    try:
        verify(path)
        return load(path)  # what is mapped stays, also when the copy has no name any more
    except DamagedError as error:
        raise DamagedError(str(error).replace(path, f"{folder}/{name}")) from error
    finally:
        if is_copy:
            os.unlink(path)


def read_newest(folder: Folder) -> tuple[str, dict[str, Any]] | None:
    """Returns the newest checkpoint that is whole, and its name; None if there is none.

    Warns of each newer one that is damaged. Raises CirandaError if all are.
    """
    damaged: dict[str, str] = {}
    while True:
        names = folder.names()
        left = [name for name in newest_first(names) if name not in damaged]
        if not left:
            break
        try:
            return left[0], read(folder, left[0])
        except DamagedError as error:
            damaged[left[0]] = str(error)
            warnings.warn(f"ciranda: {error}; the one before is taken", stacklevel=3)
        except (CirandaError, FileNotFoundError):
            # A job that writes here may have deleted it meanwhile, as newer ones are there.
            if left[0] in folder.names():
                raise
    if damaged:
        raise CirandaError(
            f"no checkpoint in {folder} is whole, so nothing is restored: "
            f"{next(iter(damaged.values()))}; to begin anew, give another folder"
        )
    if any(name.startswith("checkpoint-") for name in names):
        raise CirandaError(
            f"{folder} has checkpoints of parameter servers, which have no buffers, schedules or "
            "place in the data: load them with ps.load_checkpoint()"
        )
    return None
