"""horovod.torch.elastic: every name raises an error with the remedy."""

from __future__ import annotations

from typing import NoReturn

from ciranda.torch.absent import NAMES


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):  # Python itself asks for these
        raise AttributeError(name)
    # `from ... import` shows the text of an ImportError, but not of an AttributeError.
    raise ImportError(f"Horovod's elastic.{name} is not there yet; {NAMES['elastic']}")
