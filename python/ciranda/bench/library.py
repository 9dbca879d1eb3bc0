"""The interface of a library to a worker. One module with_*.py wraps each library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from ciranda.bench.case import Case

Call = Callable[[], torch.Tensor]  # runs the collective once; returns this rank's result


class Refused(Exception):
    """The library has no such collective; the message says why."""


class Library(Protocol):
    rank: int
    size: int

    def call(self, case: Case, sent: torch.Tensor, received: torch.Tensor) -> Call:
        """Returns a call of the collective; `received` is `sent` if it works in place."""

    def close(self) -> None: ...
