"""`ciranda run --autotune`: tries settings while a program trains, and keeps the faster ones.

It tunes the first DistributedOptimizer of a job, between its steps. All ranks make the same steps
with the same settings, and agree on the time of each sample. No setting changes what is computed,
except a wire dtype, which CIRANDA_WIRE_DTYPE=auto allows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch

from ciranda import _C
from ciranda.torch import ops
from ciranda.torch.compression import Compression
from ciranda.torch.process_sets import global_process_set
from ciranda.torch.reduction import Reduction, reduce_otherwise
from ciranda.torch.setting_search import Found, Knob, Settings, samples_at_most, search

_SETTLING_STEPS = 2  # after each change: memory is laid out, operations become known
_MIB = 1 << 20
_BUCKETS = (1 * _MIB, 16 * _MIB, 64 * _MIB)
_STREAMS = (1, 2, 4, 8)
_SPINS_US = (3, 100, 1000)


def begin(optimizer: Any) -> None:
    """Starts to tune the optimizer if the user asked for it and it is the job's first.

    Every rank that makes the optimizer calls it.
    """
    process_set = optimizer._ciranda_how.process_set
    asked = _C.autotune()
    is_first = process_set is global_process_set and process_set.optimizers_made == 1
    if asked["on"] and is_first and not process_set.alone():
        optimizer._ciranda_tuner = Tuner(optimizer, asked)


class Tuner:
    """The tuner of one optimizer; the optimizer's step() calls stepped() at its end."""

    def __init__(self, optimizer: Any, asked: dict[str, Any]) -> None:
        self._joins = _C.joins()
        self._own_pace = _C.pace()
        self._on_gpu = any(parameter.is_cuda for parameter in optimizer._parameter_names)
        self._is_shared = optimizer.why_not_shared() == ""
        self._why_sharing_ended = ""  # by the user's program
        self._log = _Log(asked["log"])

        knobs = self._knobs(optimizer, asked["wire_dtype"])
        self._first: Settings = {knob.name: knob.values[0] for knob in knobs}
        self._search: Generator[Settings, float, Found] = search(knobs, self._log.say)
        next(self._search)  # yields the first settings
        self._steps_per_sample = int(asked["steps_per_sample"])
        self._began: float | None = None  # start of the sample; None while settling
        self._left = 1 + asked["warmup_samples"] * self._steps_per_sample
        self._waits_for_join = False
        steps = samples_at_most(knobs) * (self._steps_per_sample + _SETTLING_STEPS)
        self._log.say(
            f"{optimizer._ciranda_inner_class.__name__}, {len(optimizer._parameter_names)} "
            f"parameters, {_C.size()} ranks; at most {self._left + steps} steps; times are of a "
            f"step: median (fastest-slowest) of samples of {self._steps_per_sample} steps each"
        )

    def _knobs(self, optimizer: Any, may_round: bool) -> list[Knob]:
        """Returns the knobs, equal on all ranks; a setting that the user has chosen is no knob."""
        how: Reduction = optimizer._ciranda_how
        knobs = []
        if how.shared_step == "auto" and self._is_shared and not how.share_parameters:
            knobs.append(Knob("shared_step", ("auto", False)))
        if how.bucket_bytes is None and not how.groups and not how.share_parameters:
            gradients = sum(p.numel() * p.element_size() for p in optimizer._parameter_names)
            by_itself = (25 if self._on_gpu else 4) * _MIB
            apart = {min(size, gradients): size for size in reversed((by_itself, *_BUCKETS))}
            del apart[min(by_itself, gradients)]
            sizes = (None, *sorted(apart.values()))
            knobs.append(Knob("bucket_bytes", sizes, lambda size: str(size or by_itself)))
        if may_round and how.compression is Compression.none and _C.cross_size() > 1:
            knobs.append(Knob("CIRANDA_WIRE_DTYPE", ("float32", "bfloat16")))
        if _C.cross_size() > 1 and not self._on_gpu and _C.cpu_operations() == "native":
            configured = _C.streams()
            others = (streams for streams in _STREAMS if streams != configured)
            knobs.append(
                Knob("CIRANDA_STREAMS", (0, *others), lambda streams: str(streams or configured))
            )
        # The value None is each rank's own setting, which may differ between hosts.
        first = ops.broadcast(torch.tensor(self._own_pace, dtype=torch.int64), 0, name="autotune")
        overlap, spin_us = bool(first[0]), int(first[1])
        words = {True: "on", False: "off", None: "on" if overlap else "off"}
        knobs.append(Knob("CIRANDA_OVERLAP", (None, not overlap), lambda value: words[value]))
        spins = (None, *(spin for spin in _SPINS_US if spin != spin_us))
        knobs.append(
            Knob("CIRANDA_SPIN_MICROSECONDS", spins, lambda us: str(spin_us if us is None else us))
        )
        return [knob for knob in knobs if len(knob.values) > 1]

    def stepped(self, optimizer: Any) -> None:
        """Counts a step; every rank calls it at the end of each. Blocks at the end of a sample."""
        if _C.joins() != self._joins:  # all ranks are at the same step again after a join
            why = (
                "stopped, and the settings are as before: a rank has joined, so the ranks' steps "
                "were not alike"
            )
            self._end(optimizer, self._first, why)
            return
        self._left -= 1
        if self._left > 0 or self._waits_for_join:
            return
        if self._on_gpu:
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._began is None:
            self._began, self._left = now, self._steps_per_sample
            return
        seconds, self._began = (now - self._began) / self._steps_per_sample, None
        self._left = _SETTLING_STEPS
        objects = optimizer._ciranda_shared_step is not None and optimizer._ciranda_objection != ""
        mine = torch.tensor([seconds, 1.0, float(objects)], dtype=torch.double)
        total, ranks, objections = ops.allreduce(mine, name="autotune", op=ops.Sum).tolist()
        if ranks < _C.size():
            self._waits_for_join = True
        elif not objections:  # else the next step ends sharing, and a sample follows
            self._go_on(optimizer, total / ranks)

    def _go_on(self, optimizer: Any, seconds: float) -> None:
        try:
            settings = self._search.send(seconds)
        except StopIteration as end:
            self._end(optimizer, end.value.settings, _conclusion(end.value))
        else:
            self._set(optimizer, settings)

    def _end(self, optimizer: Any, settings: Settings, conclusion: str) -> None:
        self._set(optimizer, settings)
        if settings.get("shared_step") is False and not self._why_sharing_ended:
            optimizer._ciranda_why_not_shared = "autotuning found a step of each rank faster"
        optimizer._ciranda_tuner = None
        self._log.end(conclusion)

    def _set(self, optimizer: Any, settings: Settings) -> None:
        """Applies the settings, on all ranks between two steps."""
        overlap, spin_us = settings["CIRANDA_OVERLAP"], settings["CIRANDA_SPIN_MICROSECONDS"]
        _C.set_pace(
            self._own_pace[0] if overlap is None else overlap,
            self._own_pace[1] if spin_us is None else spin_us,
        )
        how: Reduction = optimizer._ciranda_how
        other = replace(
            how, **{_OPTIONS[name]: settings[name] for name in settings if name in _OPTIONS}
        )
        if "CIRANDA_WIRE_DTYPE" in settings:
            rounds = settings["CIRANDA_WIRE_DTYPE"] == "bfloat16"
            other = replace(other, compression=Compression.bf16 if rounds else Compression.none)
        if self._is_shared and optimizer.why_not_shared():
            self._why_sharing_ended = optimizer.why_not_shared()
        if self._why_sharing_ended:
            other = replace(other, shared_step=False)
        if other == how:
            return
        reduce_otherwise(optimizer, other)
        self._is_shared = optimizer.why_not_shared() == ""
        if self._why_sharing_ended:
            optimizer._ciranda_why_not_shared = self._why_sharing_ended


# Maps a knob to the field of Reduction that it sets.
_OPTIONS = {
    "bucket_bytes": "bucket_bytes",
    "shared_step": "shared_step",
    "CIRANDA_STREAMS": "streams",
}


def _conclusion(found: Found) -> str:
    if found.proof is None:
        return "no setting was faster than the first one, so nothing was changed"
    return f"{', '.join(found.changed)}: a step takes {found.proof} before"


class _Log:
    """Lines that rank 0 writes for people: all to the file, if any, the last one also to stderr."""

    def __init__(self, path: str) -> None:
        self._path = path if _C.rank() == 0 else ""
        if self._path:
            try:
                with open(self._path, "w", encoding="utf-8"):
                    pass
            except OSError as error:
                raise ValueError(
                    f"CIRANDA_AUTOTUNE_LOG={path}: cannot write it: {error.strerror}"
                ) from error

    def say(self, line: str) -> None:
        if self._path:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(line + "\n")

    def end(self, line: str) -> None:
        self.say(line)
        if _C.rank() == 0:
            sys.stderr.write(f"ciranda: autotune: {line}\n")
            sys.stderr.flush()
