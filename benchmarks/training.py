"""How the speed of training is measured, and DDP's best settings found."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from benchmarks.common import Json, Samples, Side, stolen_s

MODELS = ("mlp", "deep", "small", "wide")
WINDOW_S = {"mlp": 1.0, "deep": 1.5, "small": 1.5, "wide": 2.5}
# How long each of DDP's settings is tried, and how often: one unlucky moment must not decide.
TRIAL_S = {"mlp": 0.3, "deep": 0.4, "small": 0.4, "wide": 1.0}
TRIALS = 2
# DDP rebuilds its buckets after the first step.
WARM_UP_STEPS = 3
BUCKET_CAPS_MB = (1, 5, 25, 100)
INTERFACES = (None, "lo,lo,lo,lo")


def images_per_s_alone(side: Side, seconds: float) -> tuple[float, float]:
    """Both processes in the same window: the sum of their rates, and their median step."""
    replies = side.ask({"seconds": seconds})
    rate = sum(reply["images"] / reply["elapsed_s"] for reply in replies)
    return rate, statistics.median(step for reply in replies for step in reply["step_s"])


def images_per_s(side: Side, steps: int) -> float:
    """Equally many steps on each rank; the slower one says when they are done."""
    return _rate(side.ask({"steps": steps}))


def _rate(replies: list[Json]) -> float:
    return float(sum(reply["images"] for reply in replies) / _elapsed_s(replies))


def _elapsed_s(replies: list[Json]) -> float:
    return float(max(reply["elapsed_s"] for reply in replies))


def measure_in_turn(
    sides: Iterable[Side],
    steps: int,
    rates: dict[str, Samples],
    met: dict[str, dict[str, Samples]] | None = None,
) -> None:
    """Adds the images/s of each side to its samples, and to `met` what its window met."""
    for side in sides:
        stolen_before = stolen_s()
        replies = side.ask({"steps": steps})
        rates.setdefault(side.name, Samples()).add(_rate(replies))
        if met is None:
            continue
        stolen = (stolen_s() - stolen_before) / _elapsed_s(replies)
        for what, value in {
            "cores kept for others, %": 100 * stolen,
            "sleeps a step": sum(reply["sleeps"] for reply in replies) / steps,
            "preemptions a step": sum(reply["preemptions"] for reply in replies) / steps,
            "skew of a step, %": _skew(replies),
        }.items():
            met.setdefault(side.name, {}).setdefault(what, Samples()).add(value)


def _skew(replies: list[Json]) -> float:
    """How much longer than their median the slowest tenth of the steps took."""
    steps = sorted(step for reply in replies for step in reply["step_s"])
    return 100 * (statistics.mean(steps[-len(steps) // 10 :]) / statistics.median(steps) - 1)


def best_ddp_settings(
    ddp: Side, trial_steps: int, interfaces: Sequence[str | None] = INTERFACES
) -> tuple[Json, dict[str, float]]:
    candidates: list[Json] = [
        {"bucket_cap_mb": cap, "interfaces": names}
        for cap in BUCKET_CAPS_MB
        for names in interfaces
    ]
    rates = [0.0] * len(candidates)
    for _ in range(TRIALS):
        for at, settings in enumerate(candidates):
            ddp.ask({"configure": settings})
            images_per_s(ddp, WARM_UP_STEPS)
            rates[at] += images_per_s(ddp, trial_steps) / TRIALS
    best = max(range(len(rates)), key=rates.__getitem__)
    return candidates[best], {str(s): r for s, r in zip(candidates, rates, strict=True)}
