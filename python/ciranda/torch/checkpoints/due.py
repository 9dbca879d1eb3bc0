"""When a checkpoint is due: what the ranks tell each other, and what follows from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_LOOK_AGAIN_MAX = 1000  # steps between two looks at the clock


@dataclass(frozen=True)
class Rule:
    """How often checkpoints are made: by steps, by time, or by both, whichever comes first."""

    every_steps: int | None
    every_s: float | None


@dataclass(frozen=True)
class Told:
    """What a rank says when all look whether a checkpoint is due."""

    rank: int
    last: int  # the step of the latest checkpoint that this rank knows of; -1: none
    age_s: float  # since it, or since the beginning
    pace_s: float  # seconds a step, since the look before; 0: not known
    idle: bool  # it writes none
    problem: str = ""  # of the latest one on this rank

    def plain(self) -> list[Any]:
        return [self.rank, self.last, self.age_s, self.pace_s, self.idle, self.problem]


@dataclass(frozen=True)
class Verdict:
    save: bool
    next_look: int  # the step at which all look again
    problem: str = ""  # to be raised by all


def eldest_of(told: list[Told]) -> Told:
    """Returns the rank that knows of the latest checkpoint: others may have joined since."""
    return max(told, key=lambda each: (each.last, -each.rank))


def decide(rule: Rule, step: int, told: list[Told]) -> Verdict:
    """Returns the same on every rank, from what all have told."""
    for each in told:
        if each.problem:
            return Verdict(False, step + 1, each.problem)
    eldest = eldest_of(told)
    due, looks = False, []
    if rule.every_steps is not None:
        next_save = max(eldest.last, 0) + rule.every_steps
        due = step >= next_save
        looks.append(step + rule.every_steps if due else next_save)
    if rule.every_s is not None:
        left_s = rule.every_s - eldest.age_s
        if left_s <= 0:
            due, left_s = True, rule.every_s
        ahead = int(left_s / eldest.pace_s / 2) if eldest.pace_s > 0 else 1
        looks.append(step + min(max(ahead, 1), _LOOK_AGAIN_MAX))
    if due and not all(each.idle for each in told):
        return Verdict(False, step + 1)  # put off until the disk has the one before
    return Verdict(due, min(looks, default=step + _LOOK_AGAIN_MAX))
