"""Names of horovod.torch that ciranda does not have yet, and what to do instead."""

from __future__ import annotations

from typing import NoReturn

from ciranda.errors import UnsupportedError

NAMES = {
    "elastic": "a job ends with its first lost rank: save checkpoints and start it again",
}


class AbsentNameError(UnsupportedError, AttributeError):
    """A name of Horovod that ciranda does not have; hasattr() returns False for it."""


def refuse(name: str) -> NoReturn:
    if name in NAMES:
        raise AbsentNameError(f"Horovod's {name} is not there yet; {NAMES[name]}")
    raise AttributeError(f"module 'ciranda.torch' has no attribute {name!r}")
