"""search(): what is kept, given how long a step takes with each setting."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ciranda.torch.setting_search import Found, Knob, Settings, samples_at_most, search

KNOBS = [Knob("bucket", (4, 1, 16)), Knob("overlap", (False, True))]


def run(seconds: Callable[[Settings, int], float]) -> tuple[Found, list[Settings], list[str]]:
    """`seconds`: of a step with these settings, in the sample of that number."""
    taken: list[Settings] = []
    lines: list[str] = []
    going = search(KNOBS, lines.append)
    settings = next(going)
    while True:
        taken.append(settings)
        try:
            settings = going.send(seconds(settings, len(taken)))
        except StopIteration as end:
            assert len(taken) <= samples_at_most(KNOBS)
            return end.value, taken, lines


def test_each_knob_goes_on_from_the_best_so_far() -> None:
    cost = {4: 2.0, 1: 3.0, 16: 1.0}
    found, taken, lines = run(lambda s, _: cost[s["bucket"]] - 0.5 * s["overlap"])
    assert found.settings == {"bucket": 16, "overlap": True}
    assert found.changed == ["bucket=16", "overlap=True"]
    assert taken[0] == {"bucket": 4, "overlap": False}
    assert {"bucket": 4, "overlap": True} not in taken  # only beside the best
    assert lines == [
        "bucket=1 instead of 4: 3000 ms (3000-3000) beside 2000 ms (2000-2000): not kept",
        "bucket=16 instead of 4: 1000 ms (1000-1000) beside 2000 ms (2000-2000): kept",
        "overlap=True instead of False: 500 ms (500-500) beside 1000 ms (1000-1000): kept",
        "once more, bucket=16, overlap=True beside what there was: 500 ms (500-500) beside "
        "2000 ms (2000-2000): kept",
    ]


def test_what_is_as_fast_is_left_as_it_was() -> None:
    found, taken, _ = run(lambda s, _: 0.99 if s["overlap"] else 1.0)
    assert found == Found({"bucket": 4, "overlap": False}, None, [])
    assert len(taken) == 2 * 3 * 3


def test_what_is_hopeless_is_tried_once() -> None:
    _, taken, _ = run(lambda s, _: 2.0 if s["bucket"] == 1 else 1.0)
    assert sum(settings["bucket"] == 1 for settings in taken) == 1


def test_what_was_faster_only_at_first_is_not_kept() -> None:
    """The check at the end: a machine that was slow while the first settings were sampled."""
    search_ends = 2 * 3 * 3
    found, taken, lines = run(
        lambda s, number: 0.5 if s["bucket"] == 16 and number <= search_ends else 1.0
    )
    assert found == Found({"bucket": 4, "overlap": False}, None, [])
    assert len(taken) == samples_at_most(KNOBS)
    assert lines[-1].startswith("once more, bucket=16 beside what there was: ")
    assert lines[-1].endswith(": not kept")


@pytest.mark.parametrize("drift", [0.9, 1.1])
def test_a_machine_that_drifts_favours_no_setting(drift: float) -> None:
    found, _, _ = run(lambda _, number: drift ** (number / 10))
    assert found.changed == []


def test_noise_alone_is_hardly_ever_taken_for_speed() -> None:
    def noise(seed: int) -> Callable[[Any, int], float]:
        source = random.Random(seed)
        return lambda *_: source.gauss(1.0, 0.05)

    assert sum(bool(run(noise(seed))[0].changed) for seed in range(200)) <= 10
