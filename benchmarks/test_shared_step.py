"""The shared step with other optimizers, and with more ranks than cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks import common, training
from benchmarks.report import Report

OPTIMIZERS = ("sgd", "adam", "adamw", "adagrad", "rmsprop")
SHARED_SIDES = ("ciranda repeated", "ciranda", "ciranda host")
CROWD = 4
CROWDED_SIDES = ("ddp", *SHARED_SIDES)

Rates = dict[str, common.Samples]


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    with Report("shared_step", "The shared step: other optimizers, and 4 ranks on 2 cores").kept(
        "images/s"
    ) as filled:
        yield filled


def add(report: Report, case: str, rates: Rates) -> None:
    report.table([case, *rates], [["images/s", *(r.show(1) for r in rates.values())]])
    report.data[case] = common.as_json(rates)
    report.panels[case] = rates


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(optimizer: str, report: Report, benchmark: Any) -> None:
    rates: Rates = {}

    def one_start() -> None:
        with common.running(common.training_sides("wide", SHARED_SIDES, optimizer)) as sides:
            steps = steps_of_a_window(sides[0], "wide")
            for _ in range(common.ROUNDS_PER_START):
                training.measure_in_turn(sides, steps, rates)

    benchmark.pedantic(one_start, rounds=common.STARTS, iterations=1)
    add(report, f"wide, {optimizer}", rates)
    repeated = rates["ciranda repeated"]
    report.check(
        f"sharded.{optimizer}",
        f"wide, {optimizer}: host ÷ repeated",
        rates["ciranda host"].over(repeated),
    )


@pytest.mark.parametrize("model", training.MODELS)
def test_more_ranks_than_cores(model: str, report: Report, benchmark: Any) -> None:
    rates: Rates = {}
    settings: common.Json | None = None

    def one_start() -> None:
        nonlocal settings
        with common.running(common.training_sides(model, CROWDED_SIDES, ranks=CROWD)) as sides:
            ddp = sides[0]
            steps = steps_of_a_window(ddp, model)
            if settings is None:
                trial_part = training.TRIAL_S[model] / training.WINDOW_S[model]
                trial_steps = max(3, int(steps * trial_part))
                settings, _ = training.best_ddp_settings(ddp, trial_steps)
            ddp.ask({"configure": settings})
            for side in sides:
                training.images_per_s(side, max(training.WARM_UP_STEPS, steps // 4))
            for _ in range(common.ROUNDS_PER_START):
                training.measure_in_turn(sides, steps, rates)

    benchmark.pedantic(one_start, rounds=common.STARTS, iterations=1)
    add(report, f"{model}, {CROWD} ranks", rates)
    report.check(
        f"crowded.{model}",
        f"{model}, {CROWD} ranks: host ÷ DDP at its best",
        rates["ciranda host"].over(rates["ddp"]),
    )


def steps_of_a_window(side: Any, model: str) -> int:
    training.images_per_s(side, training.WARM_UP_STEPS)
    replies = side.ask({"steps": training.WARM_UP_STEPS})
    step_s = max(reply["elapsed_s"] for reply in replies) / training.WARM_UP_STEPS
    return max(4, int(training.WINDOW_S[model] / step_s))
