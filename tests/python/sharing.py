"""For tests of the step that ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ciranda.torch import host_step


@contextmanager
def any_size() -> Iterator[None]:
    """The models of tests are small: within, "auto" shares their steps."""
    least, host_step.AUTO_PARAMETERS_MIN = host_step.AUTO_PARAMETERS_MIN, 0
    try:
        yield
    finally:
        host_step.AUTO_PARAMETERS_MIN = least
