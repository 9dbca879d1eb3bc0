"""For tests of the step that ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ciranda.torch import shared_step


@contextmanager
def any_size() -> Iterator[None]:
    """The models of tests are small: within, "auto" shares their steps."""
    least, shared_step.AUTO_PARAMETERS_MIN = shared_step.AUTO_PARAMETERS_MIN, 0
    try:
        yield
    finally:
        shared_step.AUTO_PARAMETERS_MIN = least
