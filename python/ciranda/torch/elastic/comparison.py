"""Whether all ranks hold the same state: compared after a change, so that none drifts unseen."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ciranda import _C
from ciranda.errors import MismatchError
from ciranda.torch.functions import allgather_object

Texts = Mapping[str, str]  # of values, by their names


def compare(trained: Mapping[str, Any], registered: Mapping[str, Any]) -> None:
    """Compares values, by their names, over the ranks. Collective, blocking.

    Raises MismatchError on every rank if they differ in what is `trained`. If they differ in what
    is `registered` beside it, which the program changes itself, the first rank warns.
    """
    own = [{name: text_of(value) for name, value in each.items()} for each in (trained, registered)]
    digest = hashlib.sha256(repr(own).encode()).hexdigest()
    if len(set(allgather_object(digest, "elastic.digest"))) == 1:
        return
    by_rank = allgather_object(own, "elastic.texts")
    if told := difference([each[0] for each in by_rank]):
        raise MismatchError(
            f"elastic: {told}; the ranks have drifted apart, because some have changed it outside "
            "of optimizer.step(); change it on every rank alike"
        )
    told = difference([each[1] for each in by_rank])
    if told and _C.rank() == 0:
        warnings.warn(
            f"elastic: {told}; a rank that joins gets that of another one; keep it the same on "
            "every rank, or do not register it",
            stacklevel=4,
        )


def text_of(value: Any) -> str:
    """Returns a text that is the same for equal tensors, numbers, strings and containers of these.

    A tensor's text has a digest of its values. Other objects have the same text.
    """
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)} {_C.digest_of_values(value):x}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {text_of(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(text_of, value)) + "]"
    return repr(value) if isinstance(value, (int, float, complex, str, bytes)) else "?"


def difference(by_rank: Sequence[Texts]) -> str:
    """Names the first value that is not the same on all ranks; "" if there is none."""
    for name in dict.fromkeys(name for texts in by_rank for name in texts):
        first, *others = [texts.get(name) for texts in by_rank]
        differing = [rank for rank, text in enumerate(others, 1) if text != first]
        if differing:
            ranks = f"rank{'s' * (len(differing) > 1)} {', '.join(map(str, differing))}"
            have = "have" if len(differing) > 1 else "has"
            return f"{ranks} {have} another value of {name} than rank 0"
    return ""
