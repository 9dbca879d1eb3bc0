"""The loop: verifies each case on each side, then times it, round by round over all sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ciranda.bench.case import Case
from ciranda.bench.commands import MEMCPY, TIME, VERIFY
from ciranda.bench.row import Row, Timing
from ciranda.bench.sides_here import SideHere, Started
from ciranda.measure.sides import Json, Side

ROUND_S = 0.06  # seconds of one case on one side: many calls of a small case, few of a large one
TRIAL_CALLS = 5
CALLS_MIN = 3  # enough for a round's median
CALLS_MAX = 2000
WARM_UP_PART = 10  # one warm-up call for each 10 measured calls


@dataclass
class Measured:
    rows: list[Row] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)  # by reason, the refused cases


@dataclass
class _Track:
    """A case on a side, ready to be timed."""

    side: Side
    command: Json
    iterations: int
    timing: Timing

    def run_round(self) -> None:
        warm_up = max(1, self.iterations // WARM_UP_PART)
        self.timing.add_round(_time(self.side, self.command, self.iterations, warm_up))


def _time(side: Side, command: Json, iterations: int, warm_up: int) -> list[list[float]]:
    told = {**command, "do": TIME, "iterations": iterations, "warm_up": warm_up}
    return [reply["seconds"] for reply in side.ask(told)]


def iterations_for(call_s: float) -> int:
    """Returns how many calls take about ROUND_S."""
    return max(CALLS_MIN, min(CALLS_MAX, int(ROUND_S / max(call_s, 1e-9))))


def _prepare(
    here: SideHere, side: Side, case: Case, ranks: int, measured: Measured
) -> list[_Track]:
    """Verifies the case and returns its track; none if the side has no such collective."""
    asked = case.as_copy(ranks) if here.name == MEMCPY else case
    command = asked.as_command()
    replies = side.ask({**command, "do": VERIFY})
    for reply in replies:
        if "refused" in reply:
            which = f"{case.op} {case.dtype} {case.redop}"
            affected = measured.refused.setdefault(f"{here.name}: {reply['refused']}", [])
            if which not in affected:
                affected.append(which)
            return []
    wrong = sum(int(reply["wrong"]) for reply in replies)
    trial = _time(side, command, TRIAL_CALLS, warm_up=1)
    # Each rank's fastest call counts: one pause of the machine in the short trial would make all
    # rounds too short.
    iterations = iterations_for(max(map(min, trial)))
    timing = Timing(here.name, here.own, case, here.ranks, case.size(ranks), wrong)
    return [_Track(side, command, iterations, timing)]


def measure(
    started: Sequence[Started],
    cases: Sequence[Case],
    ranks: int,
    rounds: int,
    progress: Callable[[str], None],
) -> Measured:
    """Returns rows in the order of the cases, and of the sides within each case."""
    measured = Measured()
    tracks: list[_Track] = []
    for number, case in enumerate(cases, 1):
        progress(f"verifying {number} of {len(cases)}")
        for here, side in started:
            tracks += _prepare(here, side, case, ranks, measured)
    for number in range(1, rounds + 1):
        progress(f"round {number} of {rounds}")
        for track in tracks:
            track.run_round()
    measured.rows = [track.timing.row() for track in tracks]
    return measured
