"""Runs a study, round by round, and estimates the time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ciranda.compare import runs
from ciranda.compare.results import Results
from ciranda.compare.setting import Setting
from ciranda.compare.study import Study
from ciranda.compare.system import System
from ciranda.launch.plan.environment import count_cores
from ciranda.measure.live_lines import LiveLines


@dataclass(frozen=True)
class Planned:
    setting: Setting
    number: int  # of the round


# Settings that differ only in these fields are compared within a round.
_SIDE_BY_SIDE: dict[str, Any] = {
    "system": "",
    "ranks": 1,
    "servers": 1,
    "network": "",
    "killed": "",
}

# Returns why a setting cannot run on this machine, or None if it can.
Missing = Callable[[Setting], str | None]


def plan(study: Study, systems: Mapping[str, System], missing: Missing) -> list[Planned]:
    """Returns every run once, even if several tables share it.

    The systems of a cell alternate, round by round, so that a disturbance of the machine affects
    all of them.
    """
    planned: dict[tuple[str, int], Planned] = {}
    for table in study.tables:
        cells: dict[str, list[Setting]] = {}
        for setting in table.settings(systems):
            if missing(setting) is None:
                cells.setdefault(setting.but(**_SIDE_BY_SIDE).key(), []).append(setting)
        for cell in cells.values():
            for number in range(table.rounds):
                for setting in cell:
                    planned.setdefault((setting.key(), number), Planned(setting, number))
    return list(planned.values())


def measure(
    planned: Sequence[Planned],
    systems: Mapping[str, System],
    results: Results,
    live: LiveLines,
    stop: threading.Event,
    data_folder: str | None,
    hosts: str | None,
    after: Callable[[Planned], None],
) -> None:
    """Measures the planned runs that have no result yet. Blocks. Says on `live` how far it is.

    Calls `after` with each run that has ended, before the next one starts. Raises runs.Interrupted
    once `stop` is set.
    """
    left = [each for each in planned if not results.has(each.setting, each.number)]
    if len(left) < len(planned):
        live.say(f"{len(planned) - len(left)} of {len(planned)} runs are there already")
    expected_s, taken_s = 0.0, 0.0
    for done, each in enumerate(left):
        if stop.is_set():
            raise runs.Interrupted
        begin = time.monotonic()
        # Each round has its own order of images and its own initial parameters.
        seeded = each.setting.but(seed=each.setting.seed + each.number)
        title = f"[{done + 1}/{len(left)}] {_run_text(each)}"

        def watch(
            told: runs.Outcome | None,
            each: Planned = each,
            title: str = title,
            begin: float = begin,
        ) -> None:
            place = place_text(each.setting, told)
            live.draw([f"{title}: {place}, {_span(time.monotonic() - begin)}"])

        try:
            system = systems[each.setting.system]
            outcome = _one(seeded, system, stop, data_folder, hosts, watch)
        finally:
            live.erase()
        results.add(each.setting, each.number, outcome)
        after(each)
        taken_s += time.monotonic() - begin
        expected_s += each.setting.expected_s()
        rest_s = sum(other.setting.expected_s() for other in left[done + 1 :])
        rest_s *= taken_s / expected_s
        about = describe(each.setting)
        ended = "failed" if "error" in outcome else f"{time.monotonic() - begin:.0f} s"
        live.say(f"[{done + 1}/{len(left)}] {about}: {ended}; about {_span(rest_s)} left")
        if "error" in outcome:
            live.say("    " + outcome["error"].replace("\n", "\n    "))


def _one(
    setting: Setting,
    system: System,
    stop: threading.Event,
    data_folder: str | None,
    hosts: str | None,
    watch: runs.Watch,
) -> runs.Outcome:
    servers = setting.servers if system.processes.servers else 0
    facts: runs.Outcome = {"servers": servers, "cores": count_cores(), "hosts": hosts}
    facts["utc"] = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    try:
        return {**runs.run(system, setting, stop, data_folder, hosts, watch), **facts}
    except (runs.RunFailedError, OSError) as error:
        return {"error": str(error), **facts}


def describe(setting: Setting) -> str:
    words = [setting.model, f"×{setting.times}", f"batch {setting.batch}"]
    words += [f"{setting.ranks} rank{'s' if setting.ranks > 1 else ''}"]
    words += [setting.network] if setting.network != "host" else []
    words += [f"{setting.killed} killed"] if setting.killed else []
    words += [setting.saver] if setting.saver else []
    return f"{setting.system}: {', '.join(words)}"


def _run_text(planned: Planned) -> str:
    """Names a run in few words, for one line of a terminal."""
    setting = planned.setting
    ranks = f"{setting.ranks} rank{'s' if setting.ranks > 1 else ''}"
    return f"{setting.system}, {setting.model}, {ranks}, round {planned.number + 1}"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def place_text(setting: Setting, told: Mapping[str, Any] | None) -> str:
    """Formats the last message of rank 0 (protocol.say): `epoch 1 of 2, step 30 of 938`."""
    if told is None:
        return "starting"
    if "step" in told:
        epoch = f"epoch {told['epoch']} of {setting.epochs}"
        return f"{epoch}, step {told['step']} of {told['steps']}"
    if told["epoch"] < setting.epochs:
        return f"epoch {told['epoch'] + 1} of {setting.epochs}"
    return "trained"
