"""Refuses tensors that have no memory of their own, such as FSDP's DTensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def require_plain(what: str, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """ValueError that names the first of `named` whose values lie in other tensors."""
    for name, tensor in named:
        if is_traceable_wrapper_subclass(tensor):
            kind = type(tensor).__name__
            raise ValueError(
                f"{what}: '{name}' is a {kind}, whose values lie in other tensors; leave it to an "
                "optimizer of its own and to what made it (fully_shard, for one), and give only "
                "plain tensors here"
            )
