"""Compares this run with an earlier one, row by row, and finds rows that became too slow. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ciranda.bench.record import Record
from ciranda.bench.row import Key, Row
from ciranda.bench.tables import note, show_us, table
from ciranda.launch.errors import LaunchError

# Figures of another machine differ for reasons outside of ciranda. Other versions only may explain
# a difference.
SAME_MACHINE = ("cpu", "cores")
SAME_VERSIONS = ("kernel", "python", "torch", "ciranda")


@dataclass(frozen=True)
class Pair:
    """A row of the base and the same row of this run."""

    base: Row
    new: Row

    @property
    def ratio(self) -> float:
        """Returns the ratio of speeds; below 1, this run is slower."""
        return self.base.time_us / self.new.time_us

    @property
    def low(self) -> float:
        """Returns the ratio of the base's fastest round to this run's slowest."""
        return self.base.rounds_us.low / self.new.rounds_us.high

    @property
    def high(self) -> float:
        return self.base.rounds_us.high / self.new.rounds_us.low

    def has_failed(self, limit: float) -> bool:
        """Returns true if a backend of ciranda is too slow by more than the noise.

        The ratio must be below `limit`, and every round of this run slower than all rounds of the
        base. Rows of peers never fail.
        """
        apart = self.new.rounds_us.low > self.base.rounds_us.high
        return self.new.own and self.ratio < limit and apart


@dataclass(frozen=True)
class Comparison:
    pairs: Sequence[Pair]
    only_base: Sequence[Key]
    only_new: Sequence[Key]

    def failed(self, limit: float) -> list[Pair]:
        return [pair for pair in self.pairs if pair.has_failed(limit)]


def check_comparable(base: Record, path: str, ranks: int, device: str, hosts: int) -> None:
    """Raises LaunchError if the runs cannot be compared; called before anything is measured."""
    for what, theirs, ours in (
        ("-np", base.ranks, ranks),
        ("--device", base.device, device),
    ):
        if theirs != ours:
            raise LaunchError(
                f"--compare {path}: that run was measured with {what} {theirs}, and this run has "
                f"{ours}; give {what} {theirs}"
            )
    if base.hosts != hosts:
        how = ("without", "with") if hosts > 1 else ("with", "without")
        raise LaunchError(
            f"--compare {path}: that run was measured {how[0]} --two-hosts, and this run is "
            f"{how[1]} it"
        )


def compare(base: Sequence[Row], new: Sequence[Row]) -> Comparison:
    before = {row.key: row for row in base}
    now = {row.key: row for row in new}
    return Comparison(
        pairs=[Pair(before[key], row) for key, row in now.items() if key in before],
        only_base=[key for key in before if key not in now],
        only_new=[key for key in now if key not in before],
    )


def differences(base: Record, new: Record) -> list[str]:
    """Returns a sentence for each difference outside of ciranda's code that may explain figures."""

    def changed(names: Sequence[str]) -> str:
        return ", ".join(
            f"{name} {base.machine.get(name)} there and {new.machine.get(name)} here"
            for name in names
            if base.machine.get(name) != new.machine.get(name)
        )

    found = []
    if other := changed(SAME_MACHINE):
        found.append(f"The base was measured on another machine: {other}; the ratios say little.")
    if other := changed(SAME_VERSIONS):
        found.append(f"The versions differ: {other}.")
    return found


def name(key: Key) -> str:
    side, op, size, dtype, redop = key
    reduction = "" if redop == "none" else f" {redop}"
    return f"{side} {op} {size} B {dtype}{reduction}"


def _verdict(pair: Pair, limit: float) -> str:
    if pair.ratio >= limit:
        return ""
    if pair.has_failed(limit):
        return "too slow"
    return "within the noise" if pair.new.own else "not ours"


def comparison_table(pairs: Sequence[Pair], limit: float | None) -> str:
    head = ["op", "side", "size", "type", "redop", "base (us)", "new (us)", "speed (low-high)", ""]
    lines = [head]
    for pair in pairs:
        new = pair.new
        lines.append(
            [
                new.op,
                new.side,
                str(new.size),
                new.dtype,
                new.redop,
                show_us(pair.base.time_us),
                show_us(new.time_us),
                f"{pair.ratio:.2f} ({pair.low:.2f}-{pair.high:.2f})",
                "" if limit is None else _verdict(pair, limit),
            ]
        )
    return table(lines)


def report(base: Record, new: Record, found: Comparison, path: str, limit: float | None) -> str:
    lines = [note(f"Speed, {path} is 1: above 1, this run is faster")]
    lines += [note(sentence) for sentence in differences(base, new)]
    if found.pairs:
        lines.append(comparison_table(found.pairs, limit))
    for keys, where in ((found.only_base, "the base"), (found.only_new, "this run")):
        lines += [note(f"Only in {where}: {name(key)}") for key in keys]
    return "\n".join(lines)


def failure(pair: Pair, limit: float) -> str:
    base, new = pair.base, pair.new
    return (
        f"{name(new.key)}: {pair.ratio:.2f} of the base's speed, below {limit:g}: it took "
        f"{show_us(base.time_us)} us and takes {show_us(new.time_us)}, and no round of the "
        f"{len(new.rounds_us.values)} was as fast as the base's slowest"
    )
