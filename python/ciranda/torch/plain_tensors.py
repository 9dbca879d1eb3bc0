"""Refuses tensors that have no values of their own: FSDP's DTensor, a lazy module's parameter."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def require_plain(what: str, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raises ValueError that names the first of `named` without values of its own."""
    for name, tensor in named:
        if is_traceable_wrapper_subclass(tensor):
            kind = type(tensor).__name__
            raise ValueError(
                f"{what}: '{name}' is a {kind}, whose values lie in other tensors; leave it to an "
                "optimizer of its own and to what made it (fully_shard, for one), and give only "
                "plain tensors here"
            )
        if is_lazy(tensor):
            raise ValueError(
                f"{what}: '{name}' has no values yet; run its lazy module once on every rank "
                "before this call"
            )
