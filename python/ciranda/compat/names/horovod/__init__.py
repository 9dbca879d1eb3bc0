"""Horovod's names, from ciranda. Imports neither torch nor the launcher."""

from __future__ import annotations

from typing import Any

__version__ = "0.28.1"  # the release with this API


def __getattr__(name: str) -> Any:
    if name == "run":
        from ciranda.compat.run import run

        return run
    raise AttributeError(f"module 'horovod' has no attribute {name!r}; it is ciranda's")
