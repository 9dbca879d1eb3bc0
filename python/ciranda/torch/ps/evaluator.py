"""Scores the checkpoints of parameter servers while the training continues."""

from __future__ import annotations

import csv
import io
import os
import re
import select
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from ciranda.errors import CirandaError, InvalidArgumentError
from ciranda.torch.ps.checkpoints import load_checkpoint

EVALUATED = "CIRANDA_EVALUATED"  # names the checkpoints' folder, in the evaluator
CURVE = "curve.csv"
_POLL_S = 0.2
_STDIN = 0  # of the evaluator; ends with the training
_FIRST_COLUMNS = ("checkpoint", "time")

Score = float | Mapping[str, float]


def is_evaluator() -> bool:
    """Returns True in the process that `ciranda run --evaluator` has started beside the workers.

    It trains nothing, and calls evaluate() in place of init().
    """
    return EVALUATED in os.environ


def evaluate(
    model: torch.nn.Module,
    score: Callable[[], Score],
    folder: str | os.PathLike[str] | None = None,
    *,
    strict: bool = True,
) -> list[dict[str, float]]:
    """Loads each checkpoint into `model`, calls score(), and adds a row to the curve.

    The curve is the file `curve.csv` in the checkpoints' folder. Its columns are the checkpoint's
    number, when it was made (seconds since 1970), and `score`, or the keys of the dict that score()
    returns.

    folder: the folder of checkpoints, to score the existing ones. An evaluator passes None: it
    scores its job's checkpoints until the training has ended and the last one is scored.

    Checkpoints are scored in order, each once, also if the evaluator was killed and started again:
    a checkpoint with a row is done. Servers keep two checkpoints; one that is replaced before its
    turn has no row. The model's buffers, which servers do not hold, keep their values. strict: as
    for load_checkpoint(). Blocks. Returns the curve's rows. Raises InvalidArgumentError outside of
    an evaluator without a folder, and for an existing curve that does not fit.
    """
    path = os.environ.get(EVALUATED) if folder is None else os.fspath(folder)
    if not path:
        raise InvalidArgumentError(
            "evaluate: this process is not an evaluator; start one by `ciranda run "
            "--evaluator`, or name the folder of the checkpoints"
        )
    curve = _Curve(Path(path) / CURVE)
    over = False
    while not over:
        over = folder is not None or _training_is_over()
        for number, checkpoint in _checkpoints(Path(path)):
            if number <= curve.latest:
                continue
            made = _load(checkpoint, model, strict)
            if made is not None:
                curve.add(number, made, score())
    return curve.rows


def _training_is_over() -> bool:
    """Returns True if the training has ended; waits a moment for that."""
    readable, _, _ = select.select([_STDIN], [], [], _POLL_S)
    return bool(readable) and not os.read(_STDIN, 4096)


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yields whole checkpoints and their numbers, in order, except those replaced meanwhile."""
    found = []
    for each in folder.glob("checkpoint-*"):
        name = re.fullmatch(r"checkpoint-(\d+)", each.name)
        if name:
            found.append((int(name[1]), each))
    yield from (each for each in sorted(found) if (each[1] / "manifest").exists())


def _load(checkpoint: Path, model: torch.nn.Module, strict: bool) -> float | None:
    """Loads a checkpoint; returns when it was made, or None if it was replaced meanwhile."""
    manifest = checkpoint / "manifest"
    try:
        made = manifest.stat().st_mtime
        load_checkpoint(checkpoint, model, strict=strict)
    except (OSError, CirandaError):
        if manifest.exists():
            raise
        return None
    return made


class _Curve:
    """The rows of the curve. The file has each row whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: list[str] = []
        self.rows: list[dict[str, float]] = []
        if path.exists():
            self._read()

    @property
    def latest(self) -> float:
        """The number of the latest scored checkpoint; 0 before the first."""
        return self.rows[-1]["checkpoint"] if self.rows else 0

    def add(self, number: int, made: float, score: Score) -> None:
        scores = dict(score) if isinstance(score, Mapping) else {"score": score}
        row = {"checkpoint": number, "time": round(made, 3)}
        row |= {name: float(value) for name, value in scores.items()}
        columns = list(row)
        if self._columns and columns != self._columns:
            raise InvalidArgumentError(
                f"evaluate: {self._path} has the columns {', '.join(self._columns)}, and score() "
                f"returns {', '.join(columns[2:])}; move the old curve away"
            )
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._columns:
            writer.writerow(columns)
        writer.writerow(row.values())
        self._columns = columns
        with open(self._path, "ab", buffering=0) as file:
            file.write(text.getvalue().encode())
        self.rows.append(row)

    def _read(self) -> None:
        content = self._path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # the last row was being written when the evaluator was killed
            os.truncate(self._path, len(whole))
        lines = list(csv.reader(whole.decode("utf-8", "replace").splitlines()))
        try:
            if lines:
                self._columns = lines[0]
                if tuple(self._columns[:2]) != _FIRST_COLUMNS:
                    raise ValueError
            for line in lines[1:]:
                self.rows.append(
                    {name: float(text) for name, text in zip(self._columns, line, strict=True)}
                )
        except ValueError:
            raise InvalidArgumentError(
                f"evaluate: {self._path} is not a curve of an evaluator; move the file away"
            ) from None
