"""Reads back what was written to sinks, with the libraries themselves where they can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

Curves = dict[str, list[tuple[int, float]]]  # by name: steps and values


def in_tensorboard(folder: Path) -> dict[str, Curves]:
    """By run: its curves."""
    found = {}
    for path in sorted(folder.glob("**/events.out.*")):
        values = _events(path.parent)
        found[str(path.parent.relative_to(folder))] = {
            tag: [(each.step, each.value) for each in values.Scalars(tag)]
            for tag in values.Tags()["scalars"]
        }
    return found


def parameters_in_tensorboard(folder: Path) -> dict[str, Any]:
    pytest.importorskip("tensorboard")
    from tensorboard.plugins.hparams import metadata

    [data] = _events(folder).PluginTagToContent("hparams").values()
    told = metadata.parse_session_start_info_plugin_data(data).hparams
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in told.items()}


def in_mlflow(uri: str, experiment: str) -> dict[str, tuple[str, Any, Curves]]:
    """By run: its status, its parameters, its curves."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    found = {}
    for run in client.search_runs([client.get_experiment_by_name(experiment).experiment_id]):
        curves = {
            name: [(e.step, e.value) for e in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }
        found[run.info.run_name] = run.info.status, run.data.params, curves
    return found


def _events(folder: Path) -> Any:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    values = EventAccumulator(str(folder))
    values.Reload()
    return values
