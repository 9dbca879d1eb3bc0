"""Decides which settings make a step faster, from the times of samples and without a clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Settings = Mapping[str, Any]  # a value for each knob

PAIRS = 3  # of samples, for each value that is tried
PAIRS_AT_THE_END = 6
_WORTH = 0.98  # of the old time: a smaller gain is noise or not worth it
_HOPELESS = 1.3


@dataclass(frozen=True)
class Knob:
    """A setting and its possible values; `values[0]` is the current one."""

    name: str
    values: tuple[Any, ...]
    says: Callable[[Any], str] = str  # a value in words


@dataclass(frozen=True)
class Comparison:
    """Seconds a step, in samples of old and new settings taken in turns."""

    old: list[float]
    new: list[float]

    def is_faster(self) -> bool:
        """Returns True if `new` is faster by the median and in all pairs of samples.

        Of six pairs or more, one may differ.
        """
        pairs = list(zip(self.old, self.new, strict=True))
        lost = sum(new >= old for old, new in pairs)
        faster = statistics.median(self.new) < _WORTH * statistics.median(self.old)
        return faster and lost <= len(pairs) // PAIRS_AT_THE_END

    def __str__(self) -> str:
        return f"{_in_words(self.new)} beside {_in_words(self.old)}"


@dataclass(frozen=True)
class Found:
    settings: Settings
    proof: Comparison | None  # against the first settings; None: nothing was better
    changed: list[str]  # each is "knob=value"


def samples_at_most(knobs: Sequence[Knob]) -> int:
    """Returns the largest number of samples that search() takes."""
    values = sum(len(knob.values) - 1 for knob in knobs)
    return 2 * (PAIRS * values + PAIRS_AT_THE_END)


def search(knobs: Sequence[Knob], say: Callable[[str], None]) -> Generator[Settings, float, Found]:
    """Yields settings, takes the seconds that a step took with them, and returns the best settings.

    It tries one knob after another, each value against the best settings so far. At the end it
    compares the result with the first settings, and drops it unless it is faster. `say` receives a
    line for each decision.
    """
    first = {knob.name: knob.values[0] for knob in knobs}
    best = first
    for knob in knobs:
        for value in knob.values[1:]:
            tried = best | {knob.name: value}
            comparison = yield from _compare(best, tried, PAIRS)
            kept = comparison.is_faster()
            say(
                f"{knob.name}={knob.says(value)} instead of {knob.says(best[knob.name])}: "
                f"{comparison}: {'kept' if kept else 'not kept'}"
            )
            if kept:
                best = tried
    changed = [
        f"{knob.name}={knob.says(best[knob.name])}"
        for knob in knobs
        if best[knob.name] != first[knob.name]
    ]
    if not changed:
        return Found(first, None, [])
    proof = yield from _compare(first, best, PAIRS_AT_THE_END)
    kept = proof.is_faster()
    say(
        f"once more, {', '.join(changed)} beside what there was: {proof}: "
        f"{'kept' if kept else 'not kept'}"
    )
    return Found(best, proof, changed) if kept else Found(first, None, [])


def _compare(old: Settings, new: Settings, pairs: int) -> Generator[Settings, float, Comparison]:
    """Samples both settings in turns.

    Each comes first equally often, so a machine that gets slower favours neither.
    """
    found = Comparison([], [])
    for pair in range(pairs):
        sides = [(old, found.old), (new, found.new)]
        for settings, seconds in reversed(sides) if pair % 2 else sides:
            seconds.append((yield settings))
        if pair == 0 and found.new[0] > _HOPELESS * found.old[0]:
            break
    return found


def _in_words(seconds: list[float]) -> str:
    median, low, high = (_ms(each(seconds)) for each in (statistics.median, min, max))
    return f"{median} ms ({low}-{high})"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"
