"""Averages figures over the ranks, and writes them to TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, overload

import torch

from ciranda import _C
from ciranda.errors import MismatchError
from ciranda.sinks import Run, Sinks
from ciranda.torch.process_sets import ProcessSet, global_process_set, number_of

__all__ = ["average", "log_to"]

Value = float | torch.Tensor
_ALONE = ""  # the name of a value that is not in a dict


@overload
def average(
    values: Value,
    count: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> float: ...
@overload
def average(
    values: Mapping[str, Value],
    count: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> dict[str, float]: ...
def average(
    values: Value | Mapping[str, Value],
    count: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> float | dict[str, float]:
    """Returns the mean over the ranks of a number, or of each number in a dict.

    Blocking; every rank of `process_set` calls it. `values`: numbers, or tensors with one element,
    of any dtype and on any device. `count`: the number of samples that this rank's values are means
    of, and so this rank's weight; 0 ignores its values. Everything goes in one collective, and is
    summed in float64 in the order of the ranks, so every rank gets the same bits. Returns floats.
    Raises MismatchError on every rank if their names differ, and ValueError on every rank if all
    counts are 0. It is an allgather, so it raises while a rank has joined.
    """
    named: Mapping[str, Value] = values if isinstance(values, Mapping) else {_ALONE: values}
    names = sorted(named)
    numbers = [_number(each, named[each]) for each in names]
    weight = float(count)
    if not 0 <= weight < math.inf:
        raise ValueError(f"metrics.average: count must be a number of at least 0, not {count!r}")
    of_all = _gathered([names, numbers, weight], name, process_set)
    _require_same_names([theirs for theirs, _, _ in of_all], process_set)
    counted = [(theirs, weight) for _, theirs, weight in of_all if weight]
    if not counted:
        raise ValueError("metrics.average: count is 0 on every rank; there is nothing to average")
    total = sum(weight for _, weight in counted)
    means = {
        each: sum(theirs[position] * weight for theirs, weight in counted) / total
        for position, each in enumerate(names)
    }
    return {each: means[each] for each in named} if named is values else means[_ALONE]


def log_to(
    *sinks: str, run: str, parameters: Mapping[str, Any] | None = None, group: str = "ciranda"
) -> Run:
    """Starts a run in each of the sinks: "tensorboard:DIR", "mlflow:URI", "wandb:PROJECT".

    Every rank may call it and the methods of its result, `write(values, step)` and `close()`; only
    rank 0 imports the libraries and writes. No method waits for another rank. The result is a
    context manager, which closes the run. `group`: a subfolder in TensorBoard, an experiment in
    MLflow, a group in W&B. Raises ValueError on rank 0 if a library is missing or refuses. A
    sink that fails later is left out, with a warning.
    """
    return Sinks(sinks if _C.rank() == 0 else (), group).start(run, parameters or {})


def _number(name: str, value: Any) -> float:
    what = repr(name) if name else "the value"
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"metrics.average: {what} has shape {tuple(value.shape)}; give one number, such as "
                "its mean()"
            )
        value = value.item()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"metrics.average: {what} must be a number, not {value!r}") from None


def _gathered(mine: Any, name: str | None, process_set: ProcessSet) -> list[Any]:
    """Returns what each rank gave, by rank. JSON keeps every bit of a float, also inf and nan."""
    encoded = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
    label = f"metrics.average.{name or 'noname'}"
    pieces = _C.allgather_bytes(encoded, label, number_of(process_set))
    return [json.loads(piece.numpy().tobytes()) for piece in pieces]


def _require_same_names(names_by_rank: list[list[str]], process_set: ProcessSet) -> None:
    first = names_by_rank[0]
    for rank, names in zip(process_set.ranks, names_by_rank, strict=True):
        if names != first:
            raise MismatchError(
                f"metrics.average: the ranks differ in names: rank {process_set.ranks[0]} has "
                f"{_not_in(names, first)}, rank {rank} has {_not_in(first, names)}; give the same "
                "on every rank"
            )


def _not_in(others: list[str], names: list[str]) -> str:
    own = [name for name in names if name not in others]
    if own == [_ALONE]:
        return "one number"
    return ", ".join(map(repr, own[:3])) + (", …" if len(own) > 3 else "") or "nothing more"
