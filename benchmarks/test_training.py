"""Training on two ranks against the same two processes without communication, and against DDP."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.common import (
    ROUNDS_PER_START,
    STARTS,
    Json,
    Samples,
    as_json,
    running,
    training_sides,
)
from benchmarks.report import TARGETS, Report
from benchmarks.training import (
    MODELS,
    TRIAL_S,
    WARM_UP_STEPS,
    WINDOW_S,
    best_ddp_settings,
    images_per_s,
    images_per_s_alone,
)

OURS = ("ciranda repeated", "ciranda", "ciranda host")
SIDES = ("one", "alone", "lockstep", "ddp", "zero", *OURS)


class ModelRun:
    """One model's samples, over all starts."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.rates: dict[str, Samples] = {}
        self.ddp_settings: Json | None = None
        self.ddp_search: dict[str, float] = {}
        self.description: Json = {}

    def one_start(self) -> None:
        with running(training_sides(self.model, SIDES)) as (one, alone, *talking):
            self.description = alone.ask({"describe": True})[0]
            for side in (one, alone):
                side.ask({"seconds": WINDOW_S[self.model] / 2})
            _, step_s = images_per_s_alone(alone, WINDOW_S[self.model] / 2)
            ddp, zero = (side for side in talking if side.name in ("ddp", "zero"))
            if self.ddp_settings is None:
                trial_steps = max(3, int(TRIAL_S[self.model] / step_s))
                self.ddp_settings, self.ddp_search = best_ddp_settings(ddp, trial_steps)
            for side in (ddp, zero):
                side.ask({"configure": self.ddp_settings})
            steps = max(4, int(WINDOW_S[self.model] / step_s))
            for side in talking:
                images_per_s(side, max(WARM_UP_STEPS, steps // 4))
            for _ in range(ROUNDS_PER_START):
                for side in (one, alone):
                    rate, _ = images_per_s_alone(side, WINDOW_S[self.model])
                    self.rates.setdefault(side.name, Samples()).add(rate)
                for side in talking:
                    self.rates.setdefault(side.name, Samples()).add(images_per_s(side, steps))


@pytest.fixture(scope="module")
def finished() -> Any:
    """All models of this file go into one report, written when the last one is done."""
    report = Report("training", "Training on 2 ranks with 1 thread each, images/s over both ranks")
    runs: dict[str, ModelRun] = {}
    yield runs
    if runs:
        write(report, runs)


@pytest.mark.parametrize("model", MODELS)
def test_training(model: str, finished: dict[str, ModelRun], benchmark: Any) -> None:
    run = ModelRun(model)
    # pytest-benchmark's own figure is the time of a whole start with its rounds.
    benchmark.pedantic(run.one_start, rounds=STARTS, iterations=1)
    benchmark.extra_info["images_per_s"] = as_json(run.rates)
    finished[model] = run


def write(report: Report, runs: dict[str, ModelRun]) -> None:
    rows, limits = [], []
    for model, run in runs.items():
        about, settings = run.description, run.ddp_settings or {}
        interfaces = settings.get("interfaces") or "default interface"
        rows.append(
            [
                f"{model} ({about['parameters'] / 1e6:.2f} M in {about['tensors']},"
                f" batch {about['batch']})",
                *(run.rates[side].show(1 if model == "wide" else 0) for side in run.rates),
                f"{settings['bucket_cap_mb']} MB, {interfaces}",
            ]
        )
        limits.append(
            [
                model,
                run.rates["lockstep"].over(run.rates["alone"]).show(),
                *(run.rates[side].over(run.rates["lockstep"]).show() for side in OURS),
            ]
        )
        for side, key in (("ciranda", "training"), ("ciranda host", "host")):
            for peer, title in (
                ("alone", "no communication"),
                ("ddp", "DDP at its best"),
                ("zero", "the same with ZeroRedundancyOptimizer"),
            ):
                if f"{key}.{model}.{peer}" in TARGETS:
                    ratio = run.rates[side].over(run.rates[peer])
                    report.check(f"{key}.{model}.{peer}", f"{model}: {side} ÷ {title}", ratio)
        report.data[model] = {
            **about,
            "images_per_s": as_json(run.rates),
            "ddp_settings": settings,
            "ddp_search_images_per_s": run.ddp_search,
        }
    report.table(
        [
            "model",
            *(
                "one process",
                "no communication",
                "in lock step",
                "DDP",
                "DDP, ZeroRedundancyOptimizer",
            ),
            *("ciranda, step repeated", 'ciranda ("auto")', 'ciranda ("host")'),
            "DDP's best settings",
        ],
        rows,
    )
    report.table(
        [
            "model",
            "a barrier a step ÷ no communication",
            *(f"{side} ÷ a barrier a step" for side in OURS),
        ],
        limits,
    )
    report.draw({model: run.rates for model, run in runs.items()}, "images/s")
    report.save()
