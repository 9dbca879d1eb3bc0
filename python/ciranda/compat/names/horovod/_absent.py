"""Parts of Horovod that ciranda does not have: a sentence in place of "No module named"."""

from __future__ import annotations

from typing import NoReturn


def refuse(module: str, instead: str) -> NoReturn:
    """Raises ModuleNotFoundError, so that a script which tries the import still goes on without."""
    raise ModuleNotFoundError(f"horovod.{module} is not there: {instead}", name=f"horovod.{module}")
