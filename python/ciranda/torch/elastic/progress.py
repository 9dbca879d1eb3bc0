"""How far a training is: what the ranks compare when they meet again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Progress:
    """How far the training is, in numbers that are the same on all ranks at the same point."""

    moment: int = 0  # things done so far: blocks, passes, agreements, commits
    passes: int = 0  # loops over the data that have ended
    blocks: int = 0  # blocks that have ended, in all passes; with run(): commits
    samples: int = 0  # of the current pass, in blocks that have ended
    seed: int = 0  # of the order of samples and of each block's random numbers
    size: int = 1  # the number of ranks with which the program's settings go
    agreements: list[Any] = field(default_factory=list)  # what agreed() has returned
    results: list[Any] = field(default_factory=list)  # what functions of run() have returned
    left: int = 0  # functions of run() that the ranks have left together
    at_end: bool = False  # the program has ended on this rank
