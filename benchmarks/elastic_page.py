"""The page of elastic jobs: the figures of each part's newest run, and the tables made of them.

A part keeps its figures in results/elastic.json as soon as it ends, or fails. The page is made of
whatever parts there are, so that one that fails loses no figures of another.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchmarks.common import Samples
from benchmarks.report import RESULTS, Report

from ciranda.bench.row import percentile

Figures = dict[str, Any]
TITLE = "Elastic jobs on one host"
COMMAND = "`CIRANDA_KILLS=1200 CIRANDA_RIVALS_S=300 python -m pytest benchmarks/test_elastic.py`"
# Of a step, or as many µs if those are more: what an elastic job may cost while nothing happens.
COST_PART, COST_US = 0.02, 100.0


class Parts:
    """The figures of all parts, by family and case."""

    def __init__(self) -> None:
        self._path = RESULTS / "elastic.json"
        self._report = Report("elastic", TITLE)
        try:
            self.figures: dict[str, Figures] = json.loads(self._path.read_text())["parts"]
        except (FileNotFoundError, KeyError, ValueError):
            self.figures = {}

    @contextlib.contextmanager
    def measure(self, family: str, **case: Any) -> Iterator[Figures]:
        """Keeps what the block puts into the figures, and that it failed if it did."""
        began = time.monotonic()
        figures: Figures = {"family": family, **case, "load": round(os.getloadavg()[0], 2)}
        try:
            yield figures
        except BaseException as error:
            figures["failed"] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            raise
        finally:
            figures["ended"] = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
            figures["took_s"] = round(time.monotonic() - began, 1)
            self.figures[", ".join([family, *map(str, case.values())])] = figures
            self._filled().write()

    def finish(self) -> None:
        """Writes the page with its picture, and has it printed."""
        if self.figures:
            report = self._filled()
            report.save()
            report.draw("see the titles")

    def _filled(self) -> Report:
        report = self._report
        report.sections, report.checks, report.panels = [], [], {}
        report.data = {"parts": self.figures}
        fill(report, list(self.figures.values()))
        return report


def fill(report: Report, parts: list[Figures]) -> None:
    """Makes the sections, checks and panels of the page."""
    report.sections.append(f"Made by {COMMAND}. {_about(parts)}")
    for family, show in _FAMILIES.items():
        if found := [each for each in parts if each["family"] == family]:
            show(report, found)


def _about(parts: list[Figures]) -> str:
    ended = sorted(each["ended"] for each in parts)
    loads = [each["load"] for each in parts]
    words = (
        f"Its {len(parts)} parts ended between {ended[0]} and {ended[-1]} (UTC) and took "
        f"{sum(each['took_s'] for each in parts) / 60:.0f} minutes in all; the load average before "
        f"a part was {min(loads):.1f} to {max(loads):.1f}."
    )
    for each in parts:
        if "failed" in each:
            words += f" **{_name(each)} failed**: {each['failed']}."
    return words


def _name(part: Figures) -> str:
    names = ("ranks", "kind", "change", "system", "model")
    return ", ".join([part["family"], *(str(part[each]) for each in names if each in part)])


# --- Kills ----------------------------------------------------------------------------------------


def _show_kills(report: Report, parts: list[Figures]) -> None:
    head = ["pauses", "median", "99 %", "longest"]
    columns: dict[str, Callable[[Figures, str], str]] = {
        "ranks, with a spare": lambda part, _: str(part["ranks"]),
        "where": lambda _, where: where,
        "options": lambda part, _: part["kind"],
    }
    for column, of in columns.items():
        pauses: dict[str, list[float]] = {}
        for part in parts:
            for where, pause_ms in part.get("pauses_ms", []):
                pauses.setdefault(of(part, where), []).append(pause_ms)
        rows = [[value, *_summary(each)] for value, each in sorted(pauses.items())]
        if rows:
            report.table([f"{column}: ms from a kill to the next step", *head], rows)
    _show_jobs(report, "jobs with spares", parts)
    panel: dict[str, Samples] = {}
    for ranks in sorted({part["ranks"] for part in parts}):
        side = Samples(list(_pauses(part for part in parts if part["ranks"] == ranks)))
        if side.values:
            report.check(f"elastic.pause.{ranks}", f"pause of a kill, {ranks} ranks", side, 0)
            panel[f"{ranks} ranks"] = side
    if every := list(_pauses(parts)):
        report.panels["pause of a kill, ms"] = panel
        for key, what, value in (
            ("elastic.pause.99", "99 % of all pauses are below", percentile(every, 99)),
            ("elastic.pause.longest", "the longest pause", max(every)),
        ):
            report.check(key, what, Samples([value]), 0)


def _pauses(parts: Iterable[Figures]) -> Iterator[float]:
    for part in parts:
        for _, pause_ms in part.get("pauses_ms", []):
            yield pause_ms


def _summary(pauses: list[float]) -> list[str]:
    figures = (statistics.median(pauses), percentile(pauses, 99), max(pauses))
    return [str(len(pauses)), *(f"{each:.0f}" for each in figures)]


def _show_smaller(report: Report, parts: list[Figures]) -> None:
    rows = [
        [change, *_summary(pauses)]
        for change in ("shrinks", "grows again")
        if (pauses := list(_pauses(each for each in parts if each["change"] == change)))
    ]
    if rows:
        head = ["pauses", "median", "99 %", "longest"]
        report.table(["4 ranks without a spare: ms from a kill to the next step", *head], rows)
    _show_jobs(report, "jobs whose size changes", parts)


def _show_jobs(report: Report, kind: str, parts: list[Figures]) -> None:
    outcomes = [each["outcome"] for each in parts if "outcome" in each]
    if not outcomes:
        return
    quiet = [each["like_a_quiet_job"] for each in parts if "like_a_quiet_job" in each]
    head = ["kills", "steps", "lost", "made twice", "largest difference from the replay"]
    report.table(
        [kind, "jobs", *head, "parameters of a quiet job, to the bit"],
        [
            [
                "",
                str(len(outcomes)),
                f"{sum(each.get('kills', 0) for each in parts):,}",
                f"{sum(each['steps'] for each in outcomes):,}",
                str(sum(each["lost"] for each in outcomes)),
                str(sum(each["twice"] for each in outcomes)),
                f"{max(each['replay_error'] for each in outcomes):.0e}",
                f"{sum(quiet)} of {len(quiet)}" if quiet else "",
            ]
        ],
    )
    if kind == "jobs with spares":
        report.sections.append(_HOW_KILLS)


_HOW_KILLS = """Half of the kills come at random moments, half at named places. A pause ends with
the next step that all ranks make anew. A step is lost if no rank counts it, and made twice if an
optimizer's own count differs. The replay makes the steps again in one process, in float64, with the
samples and ranks of the logs. Processes start with torch imported."""


# --- The other parts ------------------------------------------------------------------------------


def _show_reconfigure(report: Report, parts: list[Figures]) -> None:
    for part in parts:
        rows = [
            [side, str(len(each)), f"{statistics.median(each):.0f}", f"{max(each):.0f}"]
            for side, each in part.get("pauses_ms", {}).items()
            if each
        ]
        if rows:
            head = ["3 ranks become 2: ms from a kill", "kills", "median", "longest"]
            report.table(head, rows)
            report.sections.append(
                "torch's Gloo group is formed anew by `dist._reconfigure()`. The benchmark itself "
                "tells its ranks at once who is left, and there is no state, step or sample to "
                "agree about."
            )


def _show_stops(report: Report, parts: list[Figures]) -> None:
    for part in parts:
        short, long = part.get("short_s", []), Samples(part.get("next_step_s", []))
        if not short or not long.values:
            continue
        lease_s = part["lease_s"]
        report.table(
            [f"3 ranks, --lease {lease_s:g}", "stops", "ranks replaced", "s to the next step"],
            [
                [
                    f"{min(short) / lease_s:.1f} to {max(short) / lease_s:.1f} of a lease",
                    str(len(short)),
                    "0",
                    "as long as the stop",
                ],
                ["for ever", *[str(len(long.values))] * 2, long.show()],
            ],
        )
        above = Samples([each - lease_s for each in long.values])
        report.check("elastic.lease", "next step after a stop, above the lease", above)
        if part.get("like_a_quiet_job"):
            report.sections.append(
                "Each rank that stood still for a lease was dead when the others made their next "
                "step, so it wrote nothing; the parameters were those of a quiet job to the bit."
            )


def _show_rebuilds(report: Report, parts: list[Figures]) -> None:
    for part in parts:
        sides = {int(each): Samples(v) for each, v in part.get("rebuild_ms", {}).items() if v}
        if not sides:
            continue
        report.table(
            ["from one World to the next, ms", *(f"{ranks} ranks" for ranks in sides)],
            [["median of 29, until the last rank is there", *(s.show(1) for s in sides.values())]],
        )
        for ranks, samples in sides.items():
            report.check(f"elastic.rebuild.{ranks}", f"a World of {ranks} ranks anew", samples, 1)


def _show_costs(report: Report, parts: list[Figures]) -> None:
    rows = []
    for part in parts:
        model, sides = part["model"], part["step_us"]
        for name in ("", ", shared"):
            plain, ours = sides[f"plain{name}"], sides[f"elastic{name}"]
            if not plain or len(plain) != len(ours):
                continue
            other = sides.get(f"elastic loop, plain job{name}")
            above = _above(ours, plain)
            steps = (_of_starts(plain), _of_starts(ours), above)
            of_loop = _above(other, plain).show(0) if other else ""
            rows.append([model + name, *(each.show(0) for each in steps), of_loop])
            allowed = [max(COST_US, COST_PART * each) for each in steps[0].values]
            report.check(
                f"elastic.cost.{model}{name.replace(', ', '.')}",
                f"what an elastic step takes above a plain one, {model}{name}",
                Samples([a / b for a, b in zip(above.values, allowed, strict=True)]),
            )
        report.panels[f"step of {model}, µs"] = {k: _of_starts(v) for k, v in sides.items() if v}
    if rows:
        head = ["plain", "elastic", "the difference", "the loop's in a job that is not elastic"]
        report.table(["a step of 2 ranks, µs", *head], rows)
        report.sections.append(
            "All kinds of job run at the same time and take turns, and all are started anew as "
            f"often as {len(parts[0]['step_us']['plain'])} times. A round is the median step of "
            "the slower rank, a difference one of two rounds that follow each other; a start "
            "counts with the median of its rounds. `shared` is `shared_step='host'`, the others "
            f"repeat the step. Allowed are {COST_US:g} µs, or {COST_PART:.0%} of a step if that "
            "is more."
        )


def _of_starts(rounds: list[list[float]]) -> Samples:
    return Samples([statistics.median(each) for each in rounds])


def _above(ours: list[list[float]], plain: list[list[float]]) -> Samples:
    """Of each start the median difference of its rounds."""
    return _of_starts(
        [[a - b for a, b in zip(*each, strict=True)] for each in zip(ours, plain, strict=True)]
    )


def _show_rivals(report: Report, parts: list[Figures]) -> None:
    report.table(
        [
            "a kill each 5 s",
            *("seconds", "kills", "s to the next new step", "steps", "made again", "samples lost"),
            *("passes", "accuracy, %"),
        ],
        [
            [
                part["system"],
                f"{each['seconds']:.0f}",
                str(each["kills"]),
                Samples(each["pauses_s"]).show() if each["pauses_s"] else "",
                f"{each['steps']:,}",
                f"{each['made_again']:,}",
                f"{each['samples_lost']:,}",
                str(each["passes"]),
                f"{100 * each['accuracy']:.1f}",
            ]
            for part in parts
            if (each := part.get("outcome"))
        ],
    )
    report.sections.append(parts[0]["how"].rstrip())


_FAMILIES: dict[str, Callable[[Report, list[Figures]], None]] = {
    "kills": _show_kills,
    "kills without a spare": _show_smaller,
    "reconfigure": _show_reconfigure,
    "stops": _show_stops,
    "rivals": _show_rivals,
    "rebuild": _show_rebuilds,
    "cost": _show_costs,
}
