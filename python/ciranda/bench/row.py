"""One line of the tables: the times of a side for a case. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ciranda.bench.bandwidth import algbw_gbs, busbw_gbs
from ciranda.bench.case import OPS, Case
from ciranda.measure.samples import Samples

Key = tuple[str, str, int, str, str]  # side, op, size, type, redop: identify a row


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns a percentile, interpolated linearly between two values, so that 50 is the median."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class Row:
    side: str
    own: bool  # true for a backend of ciranda, false for a peer
    op: str
    size: int
    count: int
    dtype: str
    redop: str
    ranks: int
    wrong: int
    calls: int
    rounds_us: Samples  # the median of each round
    p50_us: float  # this and the following: over the calls of all rounds
    p95_us: float
    p99_us: float
    min_us: float
    max_us: float

    @property
    def key(self) -> Key:
        return (self.side, self.op, self.size, self.dtype, self.redop)

    @property
    def time_us(self) -> float:
        return self.rounds_us.median

    @property
    def algbw_gbs(self) -> float:
        return algbw_gbs(self.size, self.time_us)

    @property
    def busbw_gbs(self) -> float:
        """Returns the bus bandwidth; for a copy by one process, which crosses no bus, its algbw."""
        if self.ranks == 1:
            return self.algbw_gbs
        return busbw_gbs(self.op, self.ranks, self.size, self.time_us)

    def as_json(self) -> dict[str, Any]:
        return {
            "side": self.side,
            "own": self.own,
            "op": self.op,
            "size": self.size,
            "count": self.count,
            "type": self.dtype,
            "redop": self.redop,
            "ranks": self.ranks,
            "wrong": self.wrong,
            "calls": self.calls,
            "time_us": self.time_us,
            "algbw_gbs": self.algbw_gbs,
            "busbw_gbs": self.busbw_gbs,
            "p50_us": self.p50_us,
            "p95_us": self.p95_us,
            "p99_us": self.p99_us,
            "min_us": self.min_us,
            "max_us": self.max_us,
            "rounds_us": self.rounds_us.values,
        }

    @staticmethod
    def of_json(json: Mapping[str, Any]) -> Row:
        """Makes a Row; raises ValueError, TypeError or KeyError for other JSON.

        Derived values are computed, not read.
        """
        rounds = [float(us) for us in json["rounds_us"]]
        if not rounds or not all(us > 0 and math.isfinite(us) for us in rounds):
            raise ValueError("times that are no numbers above 0")
        if json["op"] not in OPS:
            raise ValueError(f"an operation {json['op']!r}")
        return Row(
            side=str(json["side"]),
            own=bool(json["own"]),
            op=str(json["op"]),
            size=int(json["size"]),
            count=int(json["count"]),
            dtype=str(json["type"]),
            redop=str(json["redop"]),
            ranks=int(json["ranks"]),
            wrong=int(json["wrong"]),
            calls=int(json["calls"]),
            rounds_us=Samples(rounds),
            p50_us=float(json["p50_us"]),
            p95_us=float(json["p95_us"]),
            p99_us=float(json["p99_us"]),
            min_us=float(json["min_us"]),
            max_us=float(json["max_us"]),
        )


@dataclass
class Timing:
    """The times of a side for a case so far."""

    side: str
    own: bool
    case: Case
    ranks: int  # of the side
    size: int  # bytes
    wrong: int
    rounds_us: Samples = field(default_factory=Samples)
    calls_us: list[float] = field(default_factory=list)

    def add_round(self, seconds_by_rank: Sequence[Sequence[float]]) -> None:
        """Adds the calls of the slowest rank, which is the one with the largest median.

        A collective has ended when it has ended on all ranks.
        """
        slowest = max(seconds_by_rank, key=statistics.median)
        us = [each * 1e6 for each in slowest]
        self.rounds_us.add(statistics.median(us))
        self.calls_us += us

    def row(self) -> Row:
        return Row(
            side=self.side,
            own=self.own,
            op=self.case.op,
            size=self.size,
            count=self.case.count,
            dtype=self.case.dtype,
            redop=self.case.redop,
            ranks=self.ranks,
            wrong=self.wrong,
            calls=len(self.calls_us),
            rounds_us=self.rounds_us,
            p50_us=percentile(self.calls_us, 50),
            p95_us=percentile(self.calls_us, 95),
            p99_us=percentile(self.calls_us, 99),
            min_us=min(self.calls_us),
            max_us=max(self.calls_us),
        )
