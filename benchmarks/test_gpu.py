"""On GPUs: training and allreduce through NCCL against DDP on NCCL, and what one rank costs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from benchmarks import common
from benchmarks.report import Report
from benchmarks.training import images_per_s, measure_in_turn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="no GPU: torch.cuda.is_available() says that there is none",
    ),
]

SIDES = ("one", "ciranda one", "ddp", "ciranda")
STEPS = {"large": 100, "resnet50": 30}
WARM_UP_STEPS = 10
ALLREDUCE_BYTES = {"4 KiB": 1 << 12, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
CALLS = 50


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    with Report("gpu", "Training on GPUs through NCCL, images/s over all ranks").kept() as filled:
        yield filled


def sides(model: str) -> list[common.SideMaker]:
    return [
        functools.partial(
            common.Side,
            name,
            common.through_ciranda if name.startswith("ciranda") else common.through_env(),
            "train_gpu.py",
            ["--side", name, "--model", model],
            1 if name.endswith("one") else common.RANKS,
        )
        for name in SIDES
    ]


@pytest.mark.parametrize("model", STEPS)
def test_training(model: str, report: Report, benchmark: Any) -> None:
    rates: dict[str, common.Samples] = {}
    times: dict[str, dict[str, common.Samples]] = {}
    about: common.Json = {}

    def one_start() -> None:
        with common.running(sides(model)) as running:
            about.update(running[0].ask({"describe": True})[0])
            for side in running:
                images_per_s(side, WARM_UP_STEPS)
            for _ in range(common.ROUNDS_PER_START):
                measure_in_turn(running, STEPS[model], rates)
                for size, count in ALLREDUCE_BYTES.items():
                    for side in running[2:]:
                        replies = side.ask({"bytes": count, "calls": CALLS})
                        slowest = max(reply["seconds"] for reply in replies)
                        of_size = times.setdefault(size, {})
                        of_size.setdefault(side.name, common.Samples()).add(slowest * 1e6)

    benchmark.pedantic(one_start, rounds=common.STARTS, iterations=1)
    benchmark.extra_info["images_per_s"] = common.as_json(rates)
    title = f"{model} ({about['parameters'] / 1e6:.1f} M, batch {about['batch']})"
    report.table([title, *rates], [["images/s", *(rate.show(0) for rate in rates.values())]])
    report.table(
        ["allreduce, µs", "c10d", "ciranda"],
        [[size, *(s.show(0) for s in of_size.values())] for size, of_size in times.items()],
    )
    report.check(f"gpu.{model}.ddp", f"{model}: ciranda ÷ DDP", rates["ciranda"].over(rates["ddp"]))
    report.check(
        f"gpu.{model}.one",
        f"{model}: DistributedOptimizer ÷ none, one rank",
        rates["ciranda one"].over(rates["one"]),
    )
    report.data[model] = {
        **about,
        "images_per_s": common.as_json(rates),
        "allreduce_us": {size: common.as_json(of_size) for size, of_size in times.items()},
    }
