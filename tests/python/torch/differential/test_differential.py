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
import served_programs
from jury import Start, start_on_hosts, start_on_this_host, start_with_servers, verdicts
from programs import draw
from scripts import SCRIPTS
from world import Mode

# "0:100" or "123": of random programs, also in `make soak`.
SEEDS = "DIFFERENTIAL_SEEDS"
MODES: tuple[Mode, ...] = ("auto", "host", False)
PLACES: list[tuple[Mode, int]] = [(mode, size) for mode in MODES for size in (2, 3)]
SOAKED: list[tuple[Mode, int]] = [("auto", 2), ("host", 2), (False, 3)]  # of the scripts
BATCH = 200  # programs in one start of the ranks
FAILURES_MAX = 3  # that one test reports


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
        pytest.param(
            name,
            mode,
            size,
            id=f"{name}-{mode}-{size}",
            marks=[pytest.mark.soak] * ((mode, size) in SOAKED),
        )
        for mode, size in PLACES
        for name, known in SCRIPTS.items()
        if mode in known.modes and size in known.sizes
    ],
)
def test_a_script_does_what_torch_does(name: str, mode: Mode, size: int) -> None:
    verdict = _verdicts_of_scripts(mode, size)[name]
    assert not verdict, verdict


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["auto", pytest.param("host", marks=pytest.mark.soak)])
def test_scripts_do_what_torch_does_on_two_hosts(
    make_network: Callable[..., Any], tmp_path: Path, mode: Mode
) -> None:
    names = [name for name, known in SCRIPTS.items() if mode in known.modes and known.on_hosts]
    start = start_on_hosts(make_network(2, addresses=("ipv4",)), tmp_path, 2)
    cases = [{"script": name} for name in names]
    found = verdicts(cases, mode, start, tmp_path / "runs", FAILURES_MAX)
    failed = [f"{name}: {text}" for name, text in zip(names, found, strict=False) if text]
    assert not failed, "\n".join(failed)


def _check_programs(seeds: range, mode: Mode, size: int, start: Start, folder: Path) -> None:
    failed: list[str] = []
    for first in range(0, len(seeds), BATCH):
        programs = [draw(seed) for seed in seeds[first : first + BATCH]]
        cases = [{"program": program.to_json()} for program in programs]
        own = folder / str(first)
        found = verdicts(cases, mode, start, own, FAILURES_MAX - len(failed))
        for program, verdict in zip(programs, found, strict=False):
            if verdict:
                again = f"--seed {program.seed} --mode {mode} --ranks {size} --shrink"
                failed.append(
                    f"{program.text(size, mode)}\n  => {verdict}\n"
                    f"shorter, on one host: python tests/python/torch/differential {again}"
                )
        if len(failed) >= FAILURES_MAX:
            break
    assert not failed, "\n\n".join(failed)


def _seeds(default: str, part: int, parts: int) -> range:
    """Each place has a part of them."""
    first, _, end = os.environ.get(SEEDS, default).partition(":")
    chosen = range(int(first), int(end) if end else int(first) + 1)
    return chosen[part::parts] if end else chosen


def _seeds_of(default: str, mode: Mode, size: int) -> range:
    return _seeds(default, PLACES.index((mode, size)), len(PLACES))


def _served_programs(default: str, mode: str, size: int, folder: Path) -> None:
    """Each in a process, with servers, of its own."""
    places = served_programs.PLACES
    seeds = _seeds(default, places.index((mode, size)), len(places))
    programs = [served_programs.draw(seed) for seed in seeds]
    cases = [{"served": program.to_json()} for program in programs]
    found = verdicts(cases, mode, start_with_servers(size), folder, FAILURES_MAX)
    again = f"python tests/python/torch/differential --mode {mode} --ranks {size} --shrink --seed"
    failed = [
        f"{program.text(size, mode)}\n  => {verdict}\nshorter: {again} {program.seed}"
        for program, verdict in zip(programs, found, strict=False)
        if verdict
    ]
    assert not failed, "\n\n".join(failed)


@pytest.mark.parametrize(("mode", "size"), served_programs.PLACES)
def test_random_programs_on_servers_do_what_torch_does(
    mode: str, size: int, tmp_path: Path
) -> None:
    _served_programs("0:63", mode, size, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "size"), served_programs.PLACES)
def test_many_random_programs_on_servers_do_what_torch_does(
    mode: str, size: int, tmp_path: Path
) -> None:
    _served_programs("1000:4000", mode, size, tmp_path)


@pytest.mark.parametrize(("mode", "size"), PLACES)
def test_random_programs_do_what_torch_does(mode: Mode, size: int, tmp_path: Path) -> None:
    seeds = _seeds_of("0:100", mode, size)
    _check_programs(seeds, mode, size, start_on_this_host(size), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "size"), PLACES)
def test_many_random_programs_do_what_torch_does(mode: Mode, size: int, tmp_path: Path) -> None:
    seeds = _seeds_of("1000:6000", mode, size)
    _check_programs(seeds, mode, size, start_on_this_host(size), tmp_path)


def _check_programs_on_two_hosts(
    default: str, mode: Mode, make_network: Callable[..., Any], folder: Path
) -> None:
    start = start_on_hosts(make_network(2, addresses=("ipv4",)), folder, 2)
    seeds = _seeds(default, MODES.index(mode), len(MODES))
    _check_programs(seeds, mode, 4, start, folder / "runs")


@pytest.mark.parametrize("mode", MODES)
def test_random_programs_do_what_torch_does_on_two_hosts(
    make_network: Callable[..., Any], tmp_path: Path, mode: Mode
) -> None:
    _check_programs_on_two_hosts("100:130", mode, make_network, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
def test_many_random_programs_do_what_torch_does_on_two_hosts(
    make_network: Callable[..., Any], tmp_path: Path, mode: Mode
) -> None:
    _check_programs_on_two_hosts("6000:6600", mode, make_network, tmp_path)
