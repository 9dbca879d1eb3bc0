"""Training on two ranks against the same two processes without communication, and against DDP."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks import common, training
from benchmarks.report import TARGETS, Report

OURS = ("ciranda repeated", "ciranda", "ciranda host")
SIDES = ("one", "alone", "lockstep", "ddp", "zero", *OURS)


class ModelRun:
    """One model's samples, over all starts."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.rates: dict[str, common.Samples] = {}
        self.met: dict[str, dict[str, common.Samples]] = {}
        self.core_round_trips_ns = common.Samples()
        self.ddp_settings: common.Json | None = None
        self.ddp_search: dict[str, float] = {}
        self.description: common.Json = {}

    def one_start(self) -> None:
        with common.running(common.training_sides(self.model, SIDES)) as (one, alone, *talking):
            self.description = alone.ask({"describe": True})[0]
            for side in (one, alone):
                side.ask({"seconds": training.WINDOW_S[self.model] / 2})
            _, step_s = training.images_per_s_alone(alone, training.WINDOW_S[self.model] / 2)
            ddp, zero = (side for side in talking if side.name in ("ddp", "zero"))
            if self.ddp_settings is None:
                trial_steps = max(3, int(training.TRIAL_S[self.model] / step_s))
                self.ddp_settings, self.ddp_search = training.best_ddp_settings(ddp, trial_steps)
            for side in (ddp, zero):
                side.ask({"configure": self.ddp_settings})
            steps = max(4, int(training.WINDOW_S[self.model] / step_s))
            for side in talking:
                training.images_per_s(side, max(training.WARM_UP_STEPS, steps // 4))
            for _ in range(common.ROUNDS_PER_START):
                self.core_round_trips_ns.add(common.core_round_trip_ns() or 0)
                for side in (one, alone):
                    rate, _ = training.images_per_s_alone(side, training.WINDOW_S[self.model])
                    self.rates.setdefault(side.name, common.Samples()).add(rate)
                training.measure_in_turn(talking, steps, self.rates, self.met)

    def rows_of_what_was_met(self) -> list[list[str]]:
        """For each side what the slower half of its rounds met, and what the faster."""
        rows = []
        for side in ("lockstep", *OURS):
            met = {"core to core and back, ns": self.core_round_trips_ns, **self.met[side]}
            ratios = self.rates[side].over(self.rates["alone"]).values
            order = sorted(range(len(ratios)), key=ratios.__getitem__)
            halves = (order[: len(order) // 2], order[len(order) // 2 :])
            rows.append(
                [f"{self.model}: {side}"]
                + [
                    " / ".join(f"{samples.at(half).median:.2f}" for half in halves)
                    for samples in (common.Samples(ratios), *met.values())
                ]
            )
        return rows


@pytest.fixture(scope="module")
def finished() -> Any:
    """All models of this file go into one report, written when the last one is done."""
    report = Report("training", "Training on 2 ranks with 1 thread each, images/s over both ranks")
    runs: dict[str, ModelRun] = {}
    yield runs
    if runs:
        write(report, runs)


@pytest.mark.parametrize("model", training.MODELS)
def test_training(model: str, finished: dict[str, ModelRun], benchmark: Any) -> None:
    run = ModelRun(model)
    # pytest-benchmark's own figure is the time of a whole start with its rounds.
    benchmark.pedantic(run.one_start, rounds=common.STARTS, iterations=1)
    benchmark.extra_info["images_per_s"] = common.as_json(run.rates)
    finished[model] = run


def write(report: Report, runs: dict[str, ModelRun]) -> None:
    rows, limits, met = [], [], []
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
        met += run.rows_of_what_was_met()
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
            "images_per_s": common.as_json(run.rates),
            "met": {side: common.as_json(samples) for side, samples in run.met.items()},
            "core_round_trips_ns": run.core_round_trips_ns.values,
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
    report.table(
        [
            "slower half of the rounds / faster half, medians",
            "÷ no communication",
            "core to core and back, ns",
            *next(iter(next(iter(runs.values())).met.values())),
        ],
        met,
    )
    report.panels = {model: run.rates for model, run in runs.items()}
    report.draw("images/s")
    report.save()
