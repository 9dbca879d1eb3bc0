"""One figure, measured several times."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Samples:
    """One figure of one side, with one value for each round."""

    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.values.append(value)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def over(self, other: Samples) -> Samples:
        """Returns ratios round by round, because the two sides of a round met the same machine."""
        return Samples([a / b for a, b in zip(self.values, other.values, strict=True)])

    def minus(self, other: Samples) -> Samples:
        return Samples([a - b for a, b in zip(self.values, other.values, strict=True)])

    def at(self, rounds: Sequence[int]) -> Samples:
        return Samples([self.values[index] for index in rounds])

    def scaled(self, factor: float) -> Samples:
        return Samples([value * factor for value in self.values])

    def show(self, digits: int = 2) -> str:
        """Formats `median (min-max)`."""
        low, high = f"{self.low:,.{digits}f}", f"{self.high:,.{digits}f}"
        return f"{self.median:,.{digits}f} ({low}-{high})"


def as_json(samples: Mapping[Any, Samples]) -> dict[str, list[float]]:
    return {str(key): s.values for key, s in samples.items()}
