"""Which samples of an epoch are whose. Pure: where ranks and torch are not known.

An epoch is an order of the samples, the same on every rank. Ranks take from it in turn, one sample
each, so when all have trained on equally many, what is done is a beginning of the order, and
any number of ranks can share what is left.
"""

from __future__ import annotations

from typing import Literal

Ending = Literal["pad", "drop", "uneven"]


def share(length: int, start: int, rank: int, size: int, ending: Ending) -> range:
    """The places in the order that are `rank`'s, where the first `start` of `length` are done.

    What does not divide by `size`: "pad" goes on where the order begins again (a place above
    `length` is one modulo `length`), "drop" leaves it out, "uneven" gives one more to the first.
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
    """How many of the order are done once each rank has trained on `samples` of its own."""
    return min(start + samples * size, length)
