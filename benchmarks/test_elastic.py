"""Elastic jobs whose ranks are killed and stopped: how long they stand still, and what they lose.

    CIRANDA_KILLS=1200 CIRANDA_RIVALS_S=300 python -m pytest benchmarks/test_elastic.py

kills that many ranks, and trains for that many seconds with each system while a rank is killed each
5 s: less than an hour on two cores. Without the variables it takes minutes. Each part keeps its own
figures (elastic_page.py), so that any of them can be run again alone, by `-k`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import common, training
from benchmarks.common import WORKERS, one_thread_env
from benchmarks.elastic_gloo import Gloo
from benchmarks.elastic_jobs import Job, Outcome, outcome_of
from benchmarks.elastic_page import Figures, Parts
from benchmarks.elastic_rivals import END_S, HOW, KILL_EACH_S, START_S, SYSTEMS, train
from benchmarks.workers.elastic_kills import KINDS

from ciranda.measure.sides import Side, ciranda_command, start

KILLS = int(os.environ.get("CIRANDA_KILLS", "120"))
RANKS = (2, 3, 4)
LEASE_S = 1.0
STOPS = max(2, KILLS // 8)  # short ones, and as many long ones; they take seconds
RIVALS_S = float(os.environ.get("CIRANDA_RIVALS_S", "20"))
RECONFIGURATIONS = max(2, KILLS // 40)
REPLAY_ERROR_MAX = 1e-6
REBUILD_ROUNDS = 5
COST_STARTS = max(1, KILLS // 150)  # a process finds its memory elsewhere after each
COST_ROUNDS = 20

# Where ranks die: one in its program, or one with that part in a recovery, after another's death.
IN_PROGRAM = (
    "block",
    "forward",
    "hook",
    "before the step",
    "after the step",
    "after the block",
    "agreed",
)
IN_RECOVERY = tuple(
    (point, who)
    for point in ("meeting", "transfer", "transferred")
    for who in ("newcomer", "source")
)


def places(ranks: int, kind: str, rng: random.Random) -> Iterator[tuple[str, list[Any]]]:
    """Names of places and the orders to die there, for ever."""
    program = [*IN_PROGRAM, *(["between two steps"] if KINDS[kind].optimizers > 1 else [])]
    # Of two ranks the one that is left holds all there is of the state.
    recovery = [each for each in IN_RECOVERY if ranks > 2 or each[1] == "newcomer"]
    while True:
        orders = [(point, [(point, rng.randrange(ranks))]) for point in program]
        for point, who in recovery:
            first = (rng.choice(IN_PROGRAM), rng.randrange(ranks))
            orders.append((f"{point}, {who}", [first, (point, who)]))
        rng.shuffle(orders)
        yield from orders


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    every = Parts()
    yield every
    every.finish()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", RANKS)
def test_kills_with_spares(
    ranks: int, kind: str, parts: Parts, benchmark: Any, tmp_path: Path
) -> None:
    """Half of them at random moments, half at named places."""
    rng = random.Random(f"{ranks} {kind}")
    in_all = max(3, round(KILLS / (len(RANKS) * len(KINDS))))
    job = Job(tmp_path / "killed", kind, ranks, "--min-np", str(ranks), "--spares", "2")

    def kill_all(figures: Figures) -> None:
        named = places(ranks, kind, rng)
        while figures["kills"] < in_all:
            job.wait_for_processes(ranks + 2)
            where, order = ("random", []) if len(figures["pauses_ms"]) % 2 else next(named)
            pause_ms = job.kill_at(*order) if order else job.kill_at_random(rng)
            figures["pauses_ms"].append([where, pause_ms])
            figures["kills"] += len(order) or 1
        job.wait_for_processes(ranks + 2)
        job.order(("end", rng.randrange(ranks)))
        job.finish()
        figures["kills"] += 1

    with parts.measure("kills", ranks=ranks, kind=kind) as figures, contextlib.closing(job):
        figures |= {"kills": 0, "pauses_ms": []}
        benchmark.pedantic(kill_all, [figures], rounds=1, iterations=1)
        outcome = check(job, figures)
        figures["like_a_quiet_job"] = False
        assert quiet_digest(tmp_path, kind, ranks, outcome) == outcome.digest
        figures["like_a_quiet_job"] = True


def check(job: Job, figures: Figures) -> Outcome:
    """Keeps what came of a job that has ended; fails if it has lost anything."""
    outcome = outcome_of(job)
    figures["outcome"] = vars(outcome)
    assert (outcome.lost, outcome.twice) == (0, 0)
    assert outcome.replay_error <= REPLAY_ERROR_MAX
    return outcome


def quiet_digest(folder: Path, kind: str, ranks: int, outcome: Outcome) -> str:
    """What as many ranks learn in as many passes while nothing happens."""
    job = Job(
        *(folder / "quiet", kind, ranks, "--min-np", "1"), passes=outcome.passes, computing_s=0.0
    )
    with contextlib.closing(job):
        job.wait()
    return str(job.result()["digest"])


@pytest.mark.parametrize("change", ["shrinks", "grows again"])
@pytest.mark.parametrize("kind", KINDS)
def test_kills_without_a_spare(
    kind: str, change: str, parts: Parts, benchmark: Any, tmp_path: Path
) -> None:
    """4 ranks become fewer, and as many again if lost ones are started again."""
    rng = random.Random(f"{change} {kind}")
    grows = change == "grows again"
    options = ["--min-np", "1", *([] if grows else ["--reset-limit", "0"])]
    job = Job(tmp_path / "killed", kind, 4, *options)
    in_all = max(3, KILLS // 100) if grows else 3

    def kill_all(figures: Figures) -> None:
        job.wait_for_processes(4)
        for number in range(in_all):
            if grows and number % 3 == 0:  # up to three are lost at once
                job.wait_for_processes(4)
            figures["pauses_ms"].append(["random", job.kill_at_random(rng)])
            figures["kills"] += 1
        if grows:
            job.wait_for_processes(4)
        job.finish()

    part = parts.measure("kills without a spare", kind=kind, change=change)
    with part as figures, contextlib.closing(job):
        figures |= {"kills": 0, "pauses_ms": []}
        benchmark.pedantic(kill_all, [figures], rounds=1, iterations=1)
        check(job, figures)


@pytest.mark.timeout(60 + 20 * STOPS)
def test_stops(parts: Parts, benchmark: Any, tmp_path: Path) -> None:
    """A rank that is stopped for less than its lease stays; else it is killed as it stands."""
    rng = random.Random(1)
    options = ["--min-np", "3", "--spares", "2", "--lease", str(LEASE_S)]
    job = Job(tmp_path / "stopped", "plain", 3, *options, computing_s=0.01)

    def stop_all(figures: Figures) -> None:
        for number in range(2 * STOPS):
            job.wait_for_processes(5)
            epoch, since = job.epoch(), len(job.lines["counted"])
            victim, stopped_at = job.stop(rng)
            if number % 2:
                stop_s = rng.uniform(0.1, 0.7) * LEASE_S
                time.sleep(stop_s)
                os.kill(victim.pid, signal.SIGCONT)
                job.step_after(epoch - 1, len(job.lines["counted"]))
                assert victim.is_alive(), "a short stop has cost a rank"
                assert job.epoch() == epoch, "a short stop has begun an epoch"
                figures["short_s"].append(stop_s)
            else:
                at = job.step_after(epoch, since)
                assert not victim.is_alive(), "a stopped rank was not killed"
                figures["next_step_s"].append((at - stopped_at) / 1e9)
        job.finish()

    with parts.measure("stops") as figures, contextlib.closing(job):
        figures |= {"lease_s": LEASE_S, "short_s": [], "next_step_s": []}
        benchmark.pedantic(stop_all, [figures], rounds=1, iterations=1)
        outcome = check(job, figures)
        assert quiet_digest(tmp_path, "plain", 3, outcome) == outcome.digest
        figures["like_a_quiet_job"] = True


def test_beside_gloos_reconfigure(parts: Parts, benchmark: Any, tmp_path: Path) -> None:
    """The same moment of the same machine: 3 ranks become 2, and there is nothing to lose."""
    rng = random.Random(2)

    def one_round(pauses_ms: dict[str, list[float]]) -> None:
        with contextlib.closing(Gloo(tmp_path / f"gloo-{time.monotonic_ns()}")) as gloo:
            gloo.start(3)
            pauses_ms["Gloo, a sum"].append(gloo.pause_ms(rng))
        folder = tmp_path / f"ciranda-{time.monotonic_ns()}"
        options = ["--min-np", "1", "--reset-limit", "0"]
        with contextlib.closing(Job(folder, "plain", 3, *options)) as job:
            job.wait_for_processes(3)
            time.sleep(0.3)  # the start is over for all of them
            pauses_ms["ciranda, a step"].append(job.kill_at_random(rng))
            job.finish()

    with parts.measure("reconfigure") as figures:
        figures["pauses_ms"] = {"ciranda, a step": [], "Gloo, a sum": []}
        benchmark.pedantic(one_round, [figures["pauses_ms"]], rounds=RECONFIGURATIONS, iterations=1)


@pytest.mark.timeout(START_S + RIVALS_S + END_S + 60)
@pytest.mark.parametrize("system", SYSTEMS)
def test_beside_rivals(system: str, parts: Parts, benchmark: Any, tmp_path: Path) -> None:
    """A perceptron (784-512-512-10) trains for a while, and ranks are killed."""
    make, kills = SYSTEMS[system]
    if make.missing:
        pytest.skip(f"{system} is not installed")
    seconds = RIVALS_S if kills else RIVALS_S / 5

    def train_all(figures: Figures) -> None:
        with contextlib.closing(make(tmp_path / "job")) as rival:
            kill_each_s = KILL_EACH_S if kills else 0
            outcome = train(rival, seconds, kill_each_s, random.Random(3))
        figures["outcome"] = vars(outcome)

    with parts.measure("rivals", system=system) as figures:
        figures["how"] = HOW
        benchmark.pedantic(train_all, [figures], rounds=1, iterations=1)


def test_from_one_world_to_the_next(parts: Parts, benchmark: Any) -> None:
    def one_round(rebuild_ms: dict[str, list[float]]) -> None:
        for ranks, samples in rebuild_ms.items():
            worker = ["-m", "benchmarks.workers.elastic_rebuild", "--ranks", ranks]
            done = subprocess.run(
                [sys.executable, *worker], env=one_thread_env(), check=True, stdout=subprocess.PIPE
            )
            samples.append(statistics.median(float(line) for line in done.stdout.split()[1:]))

    with parts.measure("rebuild") as figures:
        figures["rebuild_ms"] = {"2": [], "4": [], "16": []}
        benchmark.pedantic(one_round, [figures["rebuild_ms"]], rounds=REBUILD_ROUNDS, iterations=1)


# Whether the job is elastic, the loop, and whether the step is shared.
COST_SIDES = {
    "plain": (False, "plain", "no"),
    "elastic": (True, "elastic", "no"),
    "elastic loop, plain job": (False, "elastic", "no"),
    "plain, shared": (False, "plain", "host"),
    "elastic, shared": (True, "elastic", "host"),
}


@pytest.mark.parametrize("model", training.MODELS)
def test_cost_without_a_loss(model: str, parts: Parts, benchmark: Any) -> None:
    """All sides live at once and take turns, so that those of a round meet the same machine."""
    with parts.measure("cost", model=model) as figures:
        figures["step_us"] = {name: [] for name in COST_SIDES}
        benchmark.pedantic(
            cost_of_one_start, [model, figures["step_us"]], rounds=COST_STARTS, iterations=1
        )


def cost_of_one_start(model: str, step_us: dict[str, list[list[float]]]) -> None:
    """Adds to each side the steps of all rounds of one start."""
    makers = [functools.partial(cost_side, model, name) for name in COST_SIDES]
    with common.running(makers) as sides:
        step_s = max([slowest_median_s(side, training.WARM_UP_STEPS) for side in sides])
        steps = max(4, int(training.WINDOW_S[model] / 10 / step_s))
        rounds: dict[str, list[float]] = {name: [] for name in COST_SIDES}
        for number in range(COST_ROUNDS):
            for side in sides if number % 2 else reversed(sides):
                rounds[side.name].append(slowest_median_s(side, steps) * 1e6)
    for name, values in rounds.items():
        step_us[name].append(values)


def cost_side(model: str, name: str) -> Side:
    is_elastic, loop, shared_step = COST_SIDES[name]
    options = ["--min-np", str(common.RANKS)] if is_elastic else []

    def launch(worker: Any, log: Any, ranks: int) -> Any:
        run = [*ciranda_command(), "run", "-np", str(ranks), *options, sys.executable]
        return [start([*run, *worker], log, one_thread_env())]

    arguments = ["--loop", loop, "--model", model, "--shared-step", shared_step]
    return Side(name, launch, [str(WORKERS / "elastic.py"), *arguments], common.RANKS)


def slowest_median_s(side: Side, steps: int) -> float:
    replies = side.ask({"steps": steps})
    return max(statistics.median(reply["step_s"]) for reply in replies)
