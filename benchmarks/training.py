"""How the speed of training is measured, and DDP's best settings found."""

from __future__ import annotations

import statistics

from benchmarks.common import Json, Side

MODELS = ("mlp", "deep", "small", "wide")
WINDOW_S = {"mlp": 1.0, "deep": 1.5, "small": 1.5, "wide": 2.5}
# How long each of DDP's settings is tried, and how often: one unlucky moment must not decide.
TRIAL_S = {"mlp": 0.3, "deep": 0.4, "small": 0.4, "wide": 1.0}
TRIALS = 2
# DDP rebuilds its buckets after the first step.
WARM_UP_STEPS = 3
DDP_SETTINGS: list[Json] = [
    {"bucket_cap_mb": cap, "interfaces": interfaces}
    for cap in (1, 5, 25, 100)
    for interfaces in (None, "lo,lo,lo,lo")
]


def images_per_s_alone(side: Side, seconds: float) -> tuple[float, float]:
    """Both processes in the same window: the sum of their rates, and their median step."""
    replies = side.ask({"seconds": seconds})
    rate = sum(reply["images"] / reply["elapsed_s"] for reply in replies)
    return rate, statistics.median(step for reply in replies for step in reply["step_s"])


def images_per_s(side: Side, steps: int) -> float:
    """Equally many steps on each rank; the slower one says when they are done."""
    replies = side.ask({"steps": steps})
    return float(
        sum(reply["images"] for reply in replies) / max(reply["elapsed_s"] for reply in replies)
    )


def best_ddp_settings(ddp: Side, trial_steps: int) -> tuple[Json, dict[str, float]]:
    rates = [0.0] * len(DDP_SETTINGS)
    for _ in range(TRIALS):
        for at, settings in enumerate(DDP_SETTINGS):
            ddp.ask({"configure": settings})
            images_per_s(ddp, WARM_UP_STEPS)
            rates[at] += images_per_s(ddp, trial_steps) / TRIALS
    best = max(range(len(rates)), key=rates.__getitem__)
    return DDP_SETTINGS[best], {str(s): r for s, r in zip(DDP_SETTINGS, rates, strict=True)}
