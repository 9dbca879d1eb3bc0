"""What a worker needs of a library. A module with_*.py wraps each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from ciranda.bench.case import Case

Call = Callable[[], torch.Tensor]  # runs the collective once; gives this rank's result


class Refused(Exception):
    """The library has no such collective; the message says why."""


class Library(Protocol):
    rank: int
    size: int

    def call(self, case: Case, sent: torch.Tensor, received: torch.Tensor) -> Call:
        """`received` is `sent` where the collective works in place."""

    def close(self) -> None: ...
