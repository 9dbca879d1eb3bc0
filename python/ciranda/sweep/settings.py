"""The settings and the result of a sweep. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.hosts import LOCAL_RANKS_MAX
from ciranda.sweep.space import Space, Value, check_placeholders, grid_size

SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("none", "median", "hyperband")

# How a trial has ended.
COMPLETE, PRUNED, FAILED, INTERRUPTED = "complete", "pruned", "failed", "interrupted"


@dataclass(frozen=True)
class SweepSettings:
    command: Sequence[str]  # with {name} for each parameter
    space: Space
    metric: str  # its name
    maximize: bool
    trials: int | None = None  # in all, including those of the storage; None: the whole grid
    np: int = 1  # ranks of each trial
    parallel: int | None = None  # trials side by side; None: as many as fit on the cores
    sampler: str = "tpe"
    seed: int | None = None
    prune: str = "none"
    prune_after: int = 0  # steps before early stopping may judge a trial
    metric_regex: str | None = None  # None: the script calls report()
    out: Path = Path("sweep-results")
    storage: Path | None = None  # None: sweep.log in `out`
    run_options: Sequence[str] = ()  # of `ciranda run`
    log: Sequence[str] = ()  # sinks (ciranda.sinks) that get each trial

    @property
    def journal(self) -> Path:
        return self.out / "sweep.log" if self.storage is None else self.storage

    @property
    def goal(self) -> str:
        return f"{'maximize' if self.maximize else 'minimize'} {self.metric}"

    def planned(self) -> int:
        """Returns the number of all trials, including those of earlier calls."""
        if self.sampler == "grid":
            size = grid_size(self.space)
            return size if self.trials is None else min(size, self.trials)
        return self.trials or 0

    def slots(self, cores: int) -> int:
        """Returns the number of trials side by side."""
        wanted = max(1, cores // self.np) if self.parallel is None else self.parallel
        return min(wanted, self.planned())

    def threads(self, cores: int) -> int:
        """Returns the threads of each rank, so that all trials together have one for each core."""
        return max(1, cores // (self.slots(cores) * self.np))


@dataclass(frozen=True)
class TrialResult:
    number: int
    parameters: Mapping[str, Value]
    state: str
    value: float | None  # the last one reported
    seconds: float | None  # None: a killed sweep did not see the end
    steps: int  # number of reports
    why: str = ""  # reason of the failure


@dataclass(frozen=True)
class SweepResult:
    trials: Sequence[TrialResult]  # including those of earlier calls, in their order
    best: TrialResult | None
    seconds: float  # of this call
    signal: int | None = None  # the signal that interrupted it

    def count(self, state: str) -> int:
        return sum(each.state == state for each in self.trials)


def best_first(trials: Sequence[TrialResult], maximize: bool) -> list[TrialResult]:
    """Returns the complete trials, best first; of two equally good trials the earlier first."""
    complete = [each for each in trials if each.state == COMPLETE and each.value is not None]
    sign = -1 if maximize else 1
    return sorted(complete, key=lambda each: (sign * (each.value or 0.0), each.number))


def check(settings: SweepSettings) -> None:
    """Raises LaunchError for settings that cannot run."""
    if not settings.command:
        raise LaunchError("no command given; try: ciranda sweep ... -- train.py --lr {lr}")
    check_placeholders(settings.command, settings.space)
    if not 1 <= settings.np <= LOCAL_RANKS_MAX:
        raise LaunchError(f"-np must be 1 to {LOCAL_RANKS_MAX} ranks a trial, not {settings.np}")
    if settings.parallel is not None and settings.parallel < 1:
        raise LaunchError(f"--parallel must be at least 1 trial, not {settings.parallel}")
    if settings.sampler not in SAMPLERS:
        raise LaunchError(f"--sampler must be one of {', '.join(SAMPLERS)}")
    if settings.prune not in PRUNERS:
        raise LaunchError(f"--prune must be one of {', '.join(PRUNERS)}")
    if settings.prune_after < 0:
        raise LaunchError(f"--prune-after must be at least 0 steps, not {settings.prune_after}")
    if settings.trials is None and settings.sampler != "grid":
        raise LaunchError(f"--trials says how many; only a grid, unlike {settings.sampler}, ends")
    if settings.trials is not None and settings.trials < 1:
        raise LaunchError(f"--trials must be at least 1, not {settings.trials}")
    if settings.sampler == "grid":
        grid_size(settings.space)
    if settings.metric_regex is not None:
        _check_regex(settings.metric_regex)


def _check_regex(text: str) -> None:
    try:
        groups = re.compile(text).groups
    except re.error as error:
        raise LaunchError(f"--metric-regex {text!r}: {error}") from None
    if groups != 1:
        raise LaunchError(
            f"--metric-regex {text!r} needs one group, around the number, such as "
            r"'accuracy (\d+\.\d+)'"
        )
