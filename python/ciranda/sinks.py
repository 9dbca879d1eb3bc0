"""Sinks of figures: TensorBoard, MLflow, Weights & Biases. A library is imported only if chosen.

sinks = Sinks(["tensorboard:runs", "mlflow:http://server:5000"], group="lr-search")
with sinks.start("trial-3", {"lr": 0.1}) as run:
    run.write({"accuracy": 0.9}, step=1)
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, SupportsFloat

__all__ = ["SINKS_HELP", "Run", "Sinks"]

SINKS_HELP = "tensorboard:DIR, mlflow:URI, wandb:PROJECT; again for another."  # of --log
_FLUSH_S = 5  # seconds after which TensorBoard sees a value


class _Sink(Protocol):
    """One run in one library."""

    def write(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self, failed: bool) -> None: ...


# Starts a run: its name, its parameters.
_Start = Callable[[str, Mapping[str, Any]], _Sink]


class Sinks:
    """The sinks that a user has chosen. Not thread-safe."""

    def __init__(
        self, chosen: Sequence[str], group: str, warn: Callable[[str], None] = warnings.warn
    ) -> None:
        """Imports the chosen libraries and connects them; ValueError says what is wrong.

        `chosen`: "tensorboard:DIR", "mlflow:URI", "wandb:PROJECT". `group`: what the runs have
        in common: a subfolder in TensorBoard, an experiment in MLflow, a group in W&B. `warn` gets
        a sentence if a sink fails later; that sink then gets no more figures.
        """
        self._warn = warn
        self._starts: dict[str, _Start] = {}
        for text in chosen:
            kind, _, place = text.partition(":")
            if kind not in _LIBRARIES or not place:
                forms = "tensorboard:DIR, mlflow:URI or wandb:PROJECT"
                raise ValueError(f"{text!r} is no sink; write {forms}")
            try:
                self._starts[text] = _LIBRARIES[kind](place, group)
            except ModuleNotFoundError as error:
                missing = (error.name or kind).partition(".")[0]
                raise ValueError(
                    f"{text!r} needs {missing}, which is not installed: pip install {missing}"
                ) from None
            except Exception as error:
                raise ValueError(f"{text!r}: {_first_line(error)}") from error

    def start(self, run: str, parameters: Mapping[str, Any]) -> Run:
        """Starts a run in each sink. Several runs may be open at a time."""
        opened = {}
        for text, start in list(self._starts.items()):
            sink = self._attempt(text, start, run, parameters)
            if sink is not None:
                opened[text] = sink
        return Run(opened, self._attempt)

    def _attempt(self, text: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a library. Its failure must not end a training or a measurement."""
        if text not in self._starts:
            return None
        try:
            return call(*arguments)
        except Exception as error:
            del self._starts[text]
            self._warn(f"{text!r} gets no more figures: {_first_line(error)}")
            return None


class Run:
    """One run in all sinks. At the end of `with` it is closed; after an exception as failed."""

    def __init__(self, opened: dict[str, _Sink], attempt: Callable[..., Any]) -> None:
        self._opened = opened
        self._attempt = attempt

    def write(self, values: Mapping[str, SupportsFloat], step: int) -> None:
        """Writes figures of a step: numbers, or tensors of one element. Steps must not decrease."""
        if self._opened:
            numbers = {name: float(value) for name, value in values.items()}
            for text, sink in self._opened.items():
                self._attempt(text, sink.write, numbers, step)

    def close(self, failed: bool = False) -> None:
        """Hands everything to the libraries, and blocks until they have it."""
        while self._opened:
            text, sink = self._opened.popitem()
            self._attempt(text, sink.close, failed)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(failed=kind is not None)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


# --- libraries ------------------------------------------------------------------------------------


def _tensorboard(folder: str, group: str) -> _Start:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    parent = Path(folder, group)
    parent.mkdir(parents=True, exist_ok=True)

    class Writer:
        def __init__(self, run: str, parameters: Mapping[str, Any]) -> None:
            self._events = EventFileWriter(str(_new_folder(parent, run)), flush_secs=_FLUSH_S)
            self._add(0, hparams_pb(parameters, trial_id=run))

        def write(self, values: Mapping[str, float], step: int) -> None:
            points = [Summary.Value(tag=name, simple_value=each) for name, each in values.items()]
            self._add(step, Summary(value=points))

        def close(self, failed: bool) -> None:
            self._events.close()

        def _add(self, step: int, summary: Any) -> None:
            self._events.add_event(Event(wall_time=time.time(), step=step, summary=summary))

    return Writer


def _new_folder(parent: Path, run: str) -> Path:
    """Makes a folder: TensorBoard shows the files of one folder as one run."""
    name = re.sub(r"[^\w.-]+", "-", run)
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            break
    return folder


def _mlflow(uri: str, group: str) -> _Start:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(group)
    experiment = found.experiment_id if found else client.create_experiment(group)

    class Writer:
        def __init__(self, run: str, parameters: Mapping[str, Any]) -> None:
            self._id = client.create_run(experiment, run_name=run).info.run_id
            told = [Param(name, str(value)) for name, value in parameters.items()]
            client.log_batch(self._id, params=told)

        def write(self, values: Mapping[str, float], step: int) -> None:
            now_ms = time.time_ns() // 1_000_000
            points = [Metric(name, value, now_ms, step) for name, value in values.items()]
            client.log_batch(self._id, metrics=points)

        def close(self, failed: bool) -> None:
            client.set_terminated(self._id, "FAILED" if failed else "FINISHED")

    return Writer


def _wandb(project: str, group: str) -> _Start:
    import wandb

    if wandb.setup().settings.mode == "online":
        wandb.login()  # here rather than in a measurement: it may ask for a key
    entity, _, name = project.rpartition("/")
    settings = wandb.Settings(console="off", silent=True)  # our terminal is ours

    class Writer:
        def __init__(self, run: str, parameters: Mapping[str, Any]) -> None:
            self._run = wandb.init(
                entity=entity or None,
                project=name,
                group=group,
                name=run,
                config=dict(parameters),
                reinit="create_new",
                settings=settings,
            )

        def write(self, values: Mapping[str, float], step: int) -> None:
            self._run.log(dict(values), step=step)

        def close(self, failed: bool) -> None:
            self._run.finish(exit_code=int(failed))

    return Writer


_LIBRARIES: dict[str, Callable[[str, str], _Start]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
