"""Stand-ins in a model for parameters that only the parameter servers hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

# Name of the parameter that servers hold if a model has no other: they need one.
NOTHING = "(no parameters)"
_made: Counter[str] = Counter()  # by kind, since init()
_LIKE = (torch.empty_like, torch.full_like, torch.zeros_like)


class StandIn(torch.nn.Parameter):
    """A parameter with a shape and without values, which are NaN and take no memory.

    An optimizer receives it, zero_grad() and GradScaler find its gradient, and requires_grad_()
    freezes it.
    """

    def __new__(cls, shape: Sequence[int]) -> StandIn:
        return super().__new__(cls, torch.full((), torch.nan).expand(*shape))

    def __deepcopy__(self, memo: dict[int, Any]) -> StandIn:
        copied = StandIn(self.shape)
        copied.requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        return copied

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Makes tensors like it, such as an optimizer's state, take no memory either."""
        with torch._C.DisableTorchFunctionSubclass():
            if func in _LIKE:
                return torch.full((), torch.nan).expand(args[0].shape)
            return func(*args, **(kwargs or {}))


def next_number(kind: str) -> int:
    """Returns the number of a new object among those of its kind.

    All workers make them in the same order.
    """
    _made[kind] += 1
    return _made[kind] - 1


def count_anew() -> None:
    """Restarts the numbers after shutdown(): objects from here on are for other servers."""
    _made.clear()
