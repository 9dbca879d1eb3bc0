"""`ciranda compare --log`: each run with its setting, the study's figures and its curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from written import Curves, in_tensorboard, parameters_in_tensorboard

from ciranda.compare.comparison import Planned
from ciranda.compare.logged import log_run
from ciranda.compare.results import Results
from ciranda.compare.setting import Setting
from ciranda.sinks import Sinks

pytest.importorskip("tensorboard")


def test_a_run_that_failed_and_one_that_did_not(tmp_path: Path) -> None:
    results, setting = Results(tmp_path / "results"), Setting(system="shm", ranks=2, lr=0.5)
    epoch = {"images": 50, "of": 100, "seconds": 2.0, "waiting_s": 0.5}
    outcome = {"epochs": [epoch], "total_s": 2.5, "curve": [(0.25, 40.0), (2.0, 80.0)]}
    results.add(setting, 0, {"ranks": [outcome, outcome], "command_s": 4.0})
    results.add(setting, 1, {"error": "it was the network"})
    figures = ["total_s", "images_per_s", "scaling", "waiting", "joules", "accuracy"]
    for number in range(3):  # the last has not run
        sinks = Sinks([f"tensorboard:{tmp_path}/tb"], "a-study", pytest.fail)
        log_run(sinks, figures, results, Planned(setting, number))
    runs = in_tensorboard(tmp_path / "tb")
    name = "a-study/shm-mlp-1-batch-64-2-ranks-round"
    assert runs == {
        f"{name}-1": {
            **{"total_s": [(0, 2.5)], "images_per_s": [(0, 50.0)], "waiting": [(0, 25.0)]},
            **{"accuracy": [(0, 80.0)], "accuracy_by_ms": [(250, 40.0), (2000, 80.0)]},
        },
        f"{name}-2": {},
    }
    parameters = parameters_in_tensorboard(tmp_path / "tb" / f"{name}-2")
    assert parameters.items() >= {"system": "shm", "lr": 0.5, "ranks": 2, "round": 2}.items()


@pytest.mark.slow
def test_a_comparison_writes_its_runs_then_and_later(made_up: Path, compare: Any) -> None:
    command = ["--study", "study.toml", "--quick", "--systems", "one", "--ranks", "1", "--out", "."]
    first = compare(*command, "--rounds", "1", "--log", "tensorboard:tb")
    assert first.returncode == 0, first.stderr
    written = in_tensorboard(made_up / "tb")
    told = json.loads((made_up / "study-made-up-quick/study-made-up.json").read_text())
    [row] = told["tables"][0]["rows"]
    [(run, curves)] = written.items()
    assert run == "study-made-up-quick/one-small-mlp-1-batch-64-1-rank-round-1"
    curve = [(round(1000 * at), accuracy) for at, accuracy in row["curves"][0]]
    expected = {name: [(0, value)] for name, [value] in row["figures"].items()}
    assert curves == as_32_bits({**expected, "accuracy_by_ms": curve})
    assert len(curve) == 2 and "images_per_s" in curves

    compare(*command, "--rounds", "3", "--show", "--log", "tensorboard:again")
    assert in_tensorboard(made_up / "again") == written


def as_32_bits(curves: Curves) -> dict[str, list[Any]]:
    return {name: [(at, pytest.approx(v, rel=1e-6)) for at, v in c] for name, c in curves.items()}


def test_a_mistake_is_found_before_anything_is_measured(made_up: Path, compare: Any) -> None:
    ended = compare("--study", "study.toml", "--quick", "--log", "csv:here")
    assert ended.returncode == 1
    assert "Error: --log 'csv:here' is no sink; write tensorboard:DIR" in ended.stderr
    assert not list(made_up.glob("**/runs.jsonl"))
