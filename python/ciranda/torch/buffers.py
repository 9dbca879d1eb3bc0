"""The buffers that DistributedOptimizer broadcasts."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

# sys.getrefcount() of a tensor that only a list and a loop over that list refer to.
_COUNTED_OF_A_LIST = 3


class Buffers:
    """A model's buffers at the time of each call, or a fixed list of buffers."""

    def __init__(self, given: torch.nn.Module | Iterable[torch.Tensor]) -> None:
        self._model = given if isinstance(given, torch.nn.Module) else None
        self._listed = [] if isinstance(given, torch.nn.Module) else list(given)

    def now(self) -> list[torch.Tensor]:
        """Returns the buffers. Raises ValueError if the model has replaced a buffer of the list."""
        if self._model is not None:
            return list(self._model.buffers())
        for buffer in self._listed:
            if sys.getrefcount(buffer) <= _COUNTED_OF_A_LIST and buffer._use_count() == 1:
                raise ValueError(
                    "DistributedOptimizer: the model has replaced a buffer of broadcast_buffers "
                    "by another tensor (forward() may do so, load_state_dict(assign=True) and a "
                    "conversion do); pass the model instead: broadcast_buffers=model"
                )
        return self._listed


def described(buffers: Buffers | None) -> list[tuple[list[int], str]]:
    """Returns the shapes and dtypes, which must be equal on all ranks."""
    now = [] if buffers is None else buffers.now()
    return [(list(buffer.shape), str(buffer.dtype)) for buffer in now]
