"""Compares what training changes, to the bit."""

from __future__ import annotations

from typing import Any

import torch


def bits(*values: Any) -> list[Any]:
    """The values, of objects all that is in their state_dict(), in a form that == compares."""
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value
