"""What stands in a model for parameters that parameter servers alone hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

# What servers are told to hold where a model has nothing else for them: they hold something.
NOTHING = "(no parameters)"
_made: Counter[str] = Counter()  # since init(), of each kind
_LIKE = (torch.empty_like, torch.full_like, torch.zeros_like)


class StandIn(torch.nn.Parameter):
    """A parameter of that shape without values, which are NaN and take no memory. An optimizer is
    given it, zero_grad() and GradScaler find its gradient, and requires_grad_() freezes it."""

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
        """An optimizer's state of it has no memory either."""
        with torch._C.DisableTorchFunctionSubclass():
            if func in _LIKE:
                return torch.full((), torch.nan).expand(args[0].shape)
            return func(*args, **(kwargs or {}))


def next_number(kind: str) -> int:
    """Of what is made now, among those of its kind, in the order that all workers make them."""
    _made[kind] += 1
    return _made[kind] - 1


def count_anew() -> None:
    """After shutdown(): what is made from here on is for other servers."""
    _made.clear()
