"""`ciranda sweep --log`: each trial is a run, also of a sweep that was ended."""

from __future__ import annotations

import os
import signal

import pytest
from written import in_mlflow, in_tensorboard, parameters_in_tensorboard

GRID = ("--sampler", "grid", "--maximize", "accuracy")


def test_each_trial_is_a_run_with_its_parameters_and_reports(sweeps) -> None:
    pytest.importorskip("tensorboard")
    sweeps.script("report(0, 1); report(3, float(words[0]))")
    command = [*GRID, "--log", "tensorboard:tb", "--param", "x=5,9", "--param", "y=1..1.5:step=0.5"]
    ended = sweeps.run(*command, "--out", "found/lr", "--", "trial.py", "{x}", "{y}")
    assert ended.returncode == 0, ended.stderr
    assert in_tensorboard(sweeps.folder / "tb") == {
        f"lr/trial-{number}": {"accuracy": [(0, 1.0), (3, value)]}
        for number, value in enumerate([5.0, 5.0, 9.0, 9.0])
    }
    last = sweeps.folder / "tb" / "lr" / "trial-3"
    assert parameters_in_tensorboard(last) == {"x": "9", "y": 1.5}


def test_a_signal_closes_the_runs_of_trials_that_it_ends(mlflow_uri: str, sweeps) -> None:
    sweeps.script("report(0, 7)\nif words[0] == '2': time.sleep(600)")
    command = [*GRID, "--log", f"mlflow:{mlflow_uri}", "--param", "x=1,2,3", "--parallel", "1"]
    sweep = sweeps.start(*command, "--", "trial.py", "{x}")
    while "trial 1: step 0" not in (line := sweep.stdout.readline()):
        assert line, sweep.stderr.read()
    os.kill(sweep.pid, signal.SIGINT)
    _, err = sweep.communicate(timeout=60)
    assert sweep.returncode == 130, err
    found = in_mlflow(mlflow_uri, "sweep-results")
    reported = {"accuracy": [(0, 7.0)]}
    assert found["trial-0"] == ("FINISHED", {"x": "1"}, reported)
    assert found["trial-1"] == ("FAILED", {"x": "2"}, reported)
    assert len(found) == 2
