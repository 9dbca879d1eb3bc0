"""Figures of a run, computed from the outcomes of its processes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ciranda.compare.setting import Setting

Run = dict[str, Any]
# Returns the run of another setting in the same round, or None.
Other = Callable[[Setting], "Run | None"]
ACCURATE = 85.0  # percent


@dataclass(frozen=True)
class Figure:
    title: str
    of: Callable[[Run, Setting, Other], float | None]  # None: not measured, or not applicable
    digits: int = 0


def _rate(epochs: slice) -> Callable[[Run, Setting, Other], float | None]:
    """Images a second of all ranks in these epochs, each rank by its own clock."""

    def of(run: Run, _: Setting, __: Other) -> float | None:
        rates = []
        for rank in run["ranks"]:
            chosen = rank["epochs"][epochs]
            seconds = sum(epoch["seconds"] for epoch in chosen)
            if not chosen or seconds <= 0:
                return None
            rates.append(sum(epoch["images"] for epoch in chosen) / seconds)
        return float(sum(rates))

    return of


first_rate, second_rate, later_rate = (
    _rate(slice(0, 1)),
    _rate(slice(1, 2)),
    _rate(slice(1, None)),
)
all_rate = _rate(slice(0, None))


def rate(run: Run, setting: Setting, other: Other) -> float | None:
    """Returns images a second after the first epoch, or in it if it is the only one."""
    return later_rate(run, setting, other) or all_rate(run, setting, other)


def _epoch_s(run: Run, setting: Setting, other: Other) -> float | None:
    found = rate(run, setting, other)
    return float(run["ranks"][0]["epochs"][-1]["of"]) / found if found else None


def _total_s(run: Run, _: Setting, __: Other) -> float | None:
    return float(max(rank["total_s"] for rank in run["ranks"]))


def _accuracy(run: Run, _: Setting, __: Other) -> float | None:
    curve = run["ranks"][0].get("curve")
    return float(curve[-1][1]) if curve else None


def _first_accuracy(run: Run, _: Setting, __: Other) -> float | None:
    curve = run["ranks"][0].get("curve")
    return float(curve[0][1]) if curve else None


def _accurate_s(run: Run, _: Setting, __: Other) -> float | None:
    curve = run["ranks"][0].get("curve") or []
    return next((float(at) for at, accuracy in curve if accuracy >= ACCURATE), None)


def _scaling(run: Run, setting: Setting, other: Other) -> float | None:
    """Returns the rate in percent of the ideal, which is one process's rate times the ranks."""
    alone_on = {"system": "one", "ranks": 1, "servers": 1, "network": "host", "slowness": 1.0}
    one = other(setting.but(**alone_on))
    mine = rate(run, setting, other)
    alone = one and rate(one, setting, other)
    return 100.0 * mine / (alone * setting.ranks) if mine and alone else None


def _part(
    names: tuple[str, ...], rest: bool = False
) -> Callable[[Run, Setting, Other], float | None]:
    """Percent of rank 0's time that was spent in `names` or, with `rest`, outside of them."""

    def of(run: Run, _: Setting, __: Other) -> float | None:
        epochs = run["ranks"][0]["epochs"]
        if not epochs or any(name not in epoch for epoch in epochs for name in names):
            return None
        seconds = sum(epoch["seconds"] for epoch in epochs)
        spent = sum(epoch[name] for epoch in epochs for name in names)
        return float(100.0 * (seconds - spent if rest else spent) / seconds)

    return of


def _compute(run: Run, setting: Setting, other: Other) -> float | None:
    epochs = run["ranks"][0]["epochs"]
    counted = tuple(n for n in ("communicating_s", "waiting_s") if epochs and n in epochs[0])
    return _part(counted, rest=True)(run, setting, other) if counted else None


def _joules(run: Run, _: Setting, __: Other) -> float | None:
    counted = run.get("joules")
    return None if counted is None else float(counted)


def _watts(run: Run, _: Setting, __: Other) -> float | None:
    counted = _joules(run, _, __)
    return counted / float(run["command_s"]) if counted else None


def _lost_s(run: Run, setting: Setting, other: Other) -> float | None:
    quiet = other(setting.but(killed="")) if setting.killed else None
    return float(run["command_s"] - quiet["command_s"]) if quiet else None


def _again(run: Run, _: Setting, __: Other) -> float | None:
    return float(len(run["started_again"]))


def _told(name: str) -> Callable[[Run, Setting, Other], float | None]:
    def of(run: Run, _: Setting, __: Other) -> float | None:
        value = run["ranks"][0].get(name)
        return None if value is None else float(value)

    return of


FIGURES: dict[str, Figure] = {
    "first_images_per_s": Figure("images/s, first epoch", first_rate),
    "second_images_per_s": Figure("images/s, second epoch", second_rate),
    "images_per_s": Figure("images/s", rate),
    "epoch_s": Figure("seconds an epoch", _epoch_s, 1),
    "total_s": Figure("seconds", _total_s, 1),
    "command_s": Figure("seconds of the command", lambda run, *_: float(run["command_s"]), 1),
    "accuracy": Figure("accuracy, %", _accuracy, 1),
    "first_accuracy": Figure("accuracy it begins with, %", _first_accuracy, 1),
    "accurate_s": Figure(f"seconds to {ACCURATE:.0f} %", _accurate_s, 1),
    "scaling": Figure("scaling, %", _scaling),
    "compute": Figure("computing, %", _compute),
    "communication": Figure("communicating, %", _part(("communicating_s",))),
    "waiting": Figure("waiting, %", _part(("waiting_s",))),
    "joules": Figure("joules", _joules),
    "watts": Figure("watts", _watts, 1),
    "lost_s": Figure("seconds lost", _lost_s, 1),
    "started_again": Figure("started again", _again),
    "trials": Figure("trials that ended", _told("trials")),
    "pruned": Figure("ended early", _told("pruned")),
}
# Text in place of a figure without a value.
ABSENT = {"joules": "not counted here", "watts": "not counted here"}
