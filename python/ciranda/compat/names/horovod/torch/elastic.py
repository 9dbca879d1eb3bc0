"""horovod.torch.elastic: a sentence for every name."""

from __future__ import annotations

from typing import NoReturn

from ciranda.torch.absent import NAMES


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):  # Python's own questions
        raise AttributeError(name)
    # `from ... import` shows this error's text, but not an AttributeError's.
    raise ImportError(f"Horovod's elastic.{name} is not there yet; {NAMES['elastic']}")
