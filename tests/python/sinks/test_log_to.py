"""metrics.log_to in a job: only rank 0 imports a library and writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ranks import run_ranks, values_of
from written import in_tensorboard, parameters_in_tensorboard

import ciranda.torch as hvd
from ciranda.errors import NotInitializedError


def logged(folder: str) -> list[str]:
    hvd.init()
    sink = f"tensorboard:{folder}"
    with hvd.metrics.log_to(sink, run="mnist", parameters={"lr": 0.5}, group="digits") as log:
        for step in (1, 2):
            log.write(hvd.metrics.average({"loss": hvd.rank() + step}), step)
    return sorted({"tensorboard", "mlflow", "wandb"} & set(sys.modules))


def test_rank_0_writes_and_no_other_rank(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    imported = values_of(run_ranks(logged, 2, args=[str(tmp_path)]))
    assert imported == [["tensorboard"], []]
    assert in_tensorboard(tmp_path) == {"digits/mnist": {"loss": [(1, 1.5), (2, 2.5)]}}
    assert parameters_in_tensorboard(tmp_path / "digits" / "mnist") == {"lr": 0.5}


def test_before_init_it_says_what_is_missing() -> None:
    with pytest.raises(NotInitializedError):
        hvd.metrics.log_to("tensorboard:runs", run="mnist")
