"""Horovod's names: ciranda's package `horovod`, in a folder that goes onto PYTHONPATH.

Ranks, subprocesses and spawned DataLoader workers all inherit PYTHONPATH. Imports no torch.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

NAMES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "names")


def python_path(inherited: str | None) -> str:
    """Returns PYTHONPATH with the folder of the names in front."""
    rest = [part for part in (inherited or "").split(os.pathsep) if part and part != NAMES]
    return os.pathsep.join([NAMES, *rest])


def overridden() -> str | None:
    """Returns a line about an installed Horovod that ciranda's names hide, or None."""
    spec = PathFinder.find_spec("horovod", [part for part in sys.path if part != NAMES])
    if spec is None or spec.origin is None:
        return None
    return f"`horovod` is ciranda here, not the one at {os.path.dirname(spec.origin)}"
