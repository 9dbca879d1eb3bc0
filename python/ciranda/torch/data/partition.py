"""Shares the samples of an epoch out to the ranks. Pure: knows neither ranks nor torch.

An epoch is an order of the samples, the same on every rank. Ranks take from it in turn, one sample
each. When all have trained on equally many samples, the finished samples are the beginning of the
order, so any number of ranks can share the rest.
"""

from __future__ import annotations

from typing import Literal

Ending = Literal["pad", "drop", "uneven"]


def share(length: int, start: int, rank: int, size: int, ending: Ending) -> range:
    """Returns `rank`'s positions in an order of `length` samples, from position `start` on.

    `ending` says what happens to samples that do not divide by `size`. "pad" continues at the
    beginning of the order (a position of `length` or more counts modulo `length`), "drop" leaves
    them out, "uneven" gives one more to the first ranks.
    """
    left = length - start
    if ending == "drop":
        count = left // size
    elif ending == "pad":
        count = -(-left // size)
    else:
        count = max(0, -(-(left - rank) // size))
    return range(start + rank, start + rank + count * size, size)


def done(length: int, start: int, samples: int, size: int) -> int:
    """Returns how many positions are done after each rank has trained on `samples` samples."""
    return min(start + samples * size, length)
