"""Large `bytes` within an object that travels, which go from memory to memory.

torch.save() makes text of them, in its only protocol that can be loaded with weights_only=True.
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
    """A tensor there, for as long as `piece` lives; to be written where nobody has seen it yet."""
    address = cast(int, ctypes.cast(ctypes.c_char_p(piece), ctypes.c_void_p).value)
    return torch.frombuffer((ctypes.c_char * len(piece)).from_address(address), dtype=torch.uint8)


class LargeBytes:
    """Those of one object: take() at the root; described() and put() on the other ranks."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self._mark = secrets.token_hex(8)  # the key of no dict of the object
        self._digests: list[str] = []
        self._seen: set[int] = set()
        self._is_tree = True

    def take(self, obj: Any) -> Any:
        """`obj` with a mark in place of each piece."""
        taken = self._taken(obj)
        if not self._is_tree:  # copies of what is there twice would be two
            self.pieces.clear()
            return obj
        if _C.cross_size() > 1:
            self._digests = [hashlib.sha256(piece).hexdigest() for piece in self.pieces]
        return taken

    def description(self) -> list[Any]:
        """For described()."""
        return [self._mark, [len(piece) for piece in self.pieces], self._digests]

    @classmethod
    def described(cls, description: list[Any]) -> LargeBytes:
        """With new memory for the pieces, which nobody but broadcast() may have seen."""
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
        """The opposite of take()."""
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
