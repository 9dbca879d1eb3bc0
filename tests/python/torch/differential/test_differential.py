"""ciranda beside plain torch: breaks when a script's numbers differ from those of one process that
sees the joined batch, or when it raises where torch does not."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jury import start_on_hosts, start_on_this_host, verdicts
from programs import draw
from scripts import SCRIPTS
from world import Mode

# "0:100" or "123": of random programs, also in `make soak`.
SEEDS = "DIFFERENTIAL_SEEDS"
PLACES: list[tuple[Mode, int]] = [
    (mode, size) for mode in ("auto", "host", False) for size in (2, 3)
]
BATCH = 200  # programs in one start of the ranks
FAILURES_MAX = 3  # that one test reports

# Over two hosts with two ranks each; what happens inside a rank is tried on one.
ON_HOSTS = [
    "another_class_after_the_first_was_deleted",
    "two_heads_share_a_trunk",
    "a_gradient_replaced_by_hand",
    "a_step_inside_backward",
    "gradients_kept_of_every_step",
    "different_parameters_on_different_ranks",
    "two_steps_after_one_backward_with_a_sum",
    "passes_declared_and_not",
    "a_scaler_skips_together",
    "a_model_that_moved_cast",
    "state_cleared",
    "a_group_added_and_a_layer_unfrozen",
    "tensors_outlive_their_world",
    "broadcast_in_the_middle",
]


@functools.cache
def _verdicts_of_scripts(mode: Mode, size: int) -> dict[str, str]:
    names = [name for name, known in SCRIPTS.items() if mode in known.modes and size in known.sizes]
    with tempfile.TemporaryDirectory() as folder:
        cases = [{"script": name} for name in names]
        found = verdicts(cases, mode, start_on_this_host(size), Path(folder))
    return dict(zip(names, found, strict=True))


@pytest.mark.timeout(600)  # the first one runs all
@pytest.mark.parametrize(
    ("name", "mode", "size"),
    [
        pytest.param(name, mode, size, id=f"{name}-{mode}-{size}")
        for mode, size in PLACES
        for name, known in SCRIPTS.items()
        if mode in known.modes and size in known.sizes
    ],
)
def test_a_script_does_what_torch_does(name: str, mode: Mode, size: int) -> None:
    verdict = _verdicts_of_scripts(mode, size)[name]
    assert not verdict, verdict


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["auto", "host", False])
def test_scripts_do_what_torch_does_on_two_hosts(
    make_network: Callable[..., Any], tmp_path: Path, mode: Mode
) -> None:
    network = make_network(2, addresses=("ipv4",))
    cases = [{"script": name} for name in ON_HOSTS]
    start = start_on_hosts(network, tmp_path, 2)
    found = verdicts(cases, mode, start, tmp_path / "runs")
    failed = [f"{name}: {text}" for name, text in zip(ON_HOSTS, found, strict=True) if text]
    assert not failed, "\n".join(failed)


def _check_programs(seeds: range, mode: Mode, size: int, folder: Path) -> None:
    failed: list[str] = []
    for first in range(0, len(seeds), BATCH):
        programs = [draw(seed) for seed in seeds[first : first + BATCH]]
        cases = [{"program": program.to_json()} for program in programs]
        start, own = start_on_this_host(size), folder / str(first)
        found = verdicts(cases, mode, start, own, FAILURES_MAX - len(failed))
        for program, verdict in zip(programs, found, strict=False):
            if verdict:
                again = f"--seed {program.seed} --mode {mode} --ranks {size} --shrink"
                failed.append(
                    f"{program.text(size, mode)}\n  => {verdict}\n"
                    f"shorter: python tests/python/torch/differential {again}"
                )
        if len(failed) >= FAILURES_MAX:
            break
    assert not failed, "\n\n".join(failed)


def _seeds(default: str, mode: Mode, size: int) -> range:
    """The part of all that falls to this place."""
    first, _, end = os.environ.get(SEEDS, default).partition(":")
    chosen = range(int(first), int(end) if end else int(first) + 1)
    return chosen[PLACES.index((mode, size)) :: len(PLACES)] if end else chosen


@pytest.mark.parametrize(("mode", "size"), PLACES)
def test_random_programs_do_what_torch_does(mode: Mode, size: int, tmp_path: Path) -> None:
    _check_programs(_seeds("0:100", mode, size), mode, size, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "size"), PLACES)
def test_many_random_programs_do_what_torch_does(mode: Mode, size: int, tmp_path: Path) -> None:
    _check_programs(_seeds("1000:6000", mode, size), mode, size, tmp_path)
