"""Random programs over the collectives: breaks when a rank sees anything but what a NumPy model
says, or when a program hangs. Every program runs on ranks that have run those before it."""

from __future__ import annotations

import json
import os
import time

import pytest
from actions import Action, programs, resolve
from expected import CARRIED_AS
from hypothesis import HealthCheck, given, seed, settings
from live import LiveRanks

SEED = "MACHINE_SEED"  # other programs, also in `make soak`
EXAMPLES = 100
EXAMPLES_OF_SOAK = 1500
SHRINK_S = 20.0  # how long a shorter program is looked for


def printed(program: list[Action], size: int) -> str:
    lines = "\n".join(f"  {number}: {json.dumps(action)}" for number, action in enumerate(program))
    return f"on {size} ranks:\n{lines}"


class Enough(BaseException):
    """Ends the search for a shorter program: hypothesis catches no BaseException."""


def check(size: int, examples: int, default_seed: int) -> None:
    chosen = int(os.environ.get(SEED, default_seed))
    failures: dict[str, str] = {}  # the verdicts, by program
    first_failure_s: list[float] = []

    @seed(chosen)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(size))
    def runs_as_the_model_says(program: list[Action]) -> None:
        text = printed(program, size)
        if first_failure_s and time.monotonic() > first_failure_s[0] + SHRINK_S:
            raise Enough
        verdict = failures.get(text) or live.verdict(program)
        if verdict:
            failures[text] = verdict
            first_failure_s.append(time.monotonic())
        assert not verdict

    with LiveRanks(size) as live:
        try:
            runs_as_the_model_says()
        except (Exception, Enough):
            if not failures:
                raise
    shortest = min(failures, key=len, default="")
    assert not failures, f"{shortest}\n=> {failures[shortest]}\nagain: {SEED}={chosen}"


@pytest.mark.parametrize("size", [2, 3])
def test_random_programs_do_what_the_model_says(size: int) -> None:
    check(size, EXAMPLES, 0)


@pytest.mark.parametrize("dtype", CARRIED_AS)
def test_ranks_that_disagree_about_what_travels_as_another_dtype_are_told(dtype: str) -> None:
    op = {"kind": "allreduce", "op": "Sum", "name": "a", "set": 0, "seed": 0}
    op |= {"grouped": False, "in place": False, "prescale": 1.0, "postscale": 1.0}
    op |= {"root": 0, "to": 1, "wrong": "carrier", "wrong rank": 1}
    op |= {"tensors": [{"dtype": dtype, "shape": [3], "rows": [0, 0]}]}
    program = resolve([{"do": "call", "op": op}], 2)
    with LiveRanks(2) as live:
        verdict = live.verdict(program)
    assert not verdict, f"{printed(program, 2)}\n=> {verdict}"


@pytest.mark.soak
@pytest.mark.parametrize("size", [2, 3])
def test_many_random_programs_do_what_the_model_says(size: int) -> None:
    check(size, EXAMPLES_OF_SOAK, 1)
