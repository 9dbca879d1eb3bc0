"""Large `bytes` within an object, which broadcast_object() sends from memory to memory.

torch.save() would encode them as text in the only protocol that weights_only=True can load.
"""

from __future__ import annotations

import ctypes
import hashlib
import secrets
from typing import Any, cast

import torch

from ciranda import _C
from ciranda.errors import CirandaError

_LARGE = 65_536


def _memory_of(piece: bytes) -> torch.Tensor:
    """Returns a tensor in the memory of `piece`, valid while `piece` lives.

    Write to it only if nobody else has seen `piece` yet.
    """
    address = cast(int, ctypes.cast(ctypes.c_char_p(piece), ctypes.c_void_p).value)
    return torch.frombuffer((ctypes.c_char * len(piece)).from_address(address), dtype=torch.uint8)


class LargeBytes:
    """The large bytes of one object. The root calls take(), other ranks described() and put()."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._mark = secrets.token_hex(8)  # no dict of the object has this key
        self._digests: list[str] = []
        self._seen: set[int] = set()
        self._is_tree = True

    def take(self, obj: Any) -> Any:
        """Returns `obj` with a mark in place of each piece."""
        taken = self._taken(obj)
        if not self._is_tree:  # marks would duplicate an object that occurs twice
            self.pieces.clear()
            return obj
        if _C.cross_size() > 1:
            self._digests = [hashlib.sha256(piece).hexdigest() for piece in self.pieces]
        return taken

    def description(self) -> list[Any]:
        """Returns the argument of described()."""
        return [self._mark, [len(piece) for piece in self.pieces], self._digests]

    @classmethod
    def described(cls, description: list[Any]) -> LargeBytes:
        """Returns an object with new memory for the pieces, which only broadcast() may write."""
        large = cls()
        large._mark, lengths, large._digests = description
        large.pieces = [bytes(length) for length in lengths]
        return large

    def broadcast(self, root_rank: int, label: str, members: int) -> None:
        if not self.pieces:
            return
        tensors = [_memory_of(piece) for piece in self.pieces]
        _C.broadcast_tensors(tensors, root_rank, f"{label}.bytes", members)
        if _C.rank() == root_rank:
            return
        for piece, digest in zip(self.pieces, self._digests, strict=False):
            if hashlib.sha256(piece).hexdigest() != digest:
                raise CirandaError(
                    f"{label}: the bytes of rank {root_rank} were changed on the way"
                )

    def put(self, value: Any) -> Any:
        """Undoes take(): returns `value` with the pieces in place of their marks."""
        if not self.pieces:
            return value
        if type(value) is dict:
            if self._mark in value:
                return self.pieces[value[self._mark]]
            return {key: self.put(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.put(item) for item in value)
        return value

    def _taken(self, value: Any) -> Any:
        if type(value) is bytes and len(value) >= _LARGE:
            self.pieces.append(value)
            return {self._mark: len(self.pieces) - 1}
        if type(value) is tuple:
            return tuple(self._taken(item) for item in value)
        if type(value) not in (dict, list):
            return value
        self._is_tree = self._is_tree and id(value) not in self._seen
        if not self._is_tree:
            return value
        self._seen.add(id(value))
        if type(value) is dict:
            return {key: self._taken(item) for key, item in value.items()}
        return [self._taken(item) for item in value]
