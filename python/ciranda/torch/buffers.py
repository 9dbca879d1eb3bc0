"""The buffers that DistributedOptimizer broadcasts."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

# What sys.getrefcount() counts of a tensor in a list that a loop looks at.
_COUNTED_OF_A_LIST = 3


class Buffers:
    """Of a model, as they are when they are asked for, or a list of them for ever."""

    def __init__(self, given: torch.nn.Module | Iterable[torch.Tensor]) -> None:
        self._model = given if isinstance(given, torch.nn.Module) else None
        self._listed = [] if isinstance(given, torch.nn.Module) else list(given)

    def now(self) -> list[torch.Tensor]:
        """ValueError where one of the list is nobody else's any more: the model has another."""
        if self._model is not None:
            return list(self._model.buffers())
        for buffer in self._listed:
            if sys.getrefcount(buffer) <= _COUNTED_OF_A_LIST and buffer._use_count() == 1:
                raise ValueError(
                    "DistributedOptimizer: a buffer of broadcast_buffers is not the model's any "
                    "more, which has put another tensor in its place (forward() may, "
                    "load_state_dict(assign=True) and a conversion do); pass the model, "
                    "broadcast_buffers=model"
                )
        return self._listed


def described(buffers: Buffers | None) -> list[tuple[list[int], str]]:
    """What ranks must have the same of."""
    now = [] if buffers is None else buffers.now()
    return [(list(buffer.shape), str(buffer.dtype)) for buffer in now]
