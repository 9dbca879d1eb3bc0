"""Would the tests notice a mistake? Each of these planted ones must make an assertion fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from .mutants import build, link, run, what_found_it
from .suites import ALL, SUITES, Mutant, Suite

Outcome = subprocess.CompletedProcess[str] | None  # None: it did not end

pytestmark = [
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no compiler"),
    pytest.mark.timeout(600),  # compiles as much as a small build, on a machine that may be busy
    pytest.mark.slow,
]

JOBS = min(2, os.cpu_count() or 1)
SOAKED = 5  # one of so many is tried without: they judge the tests, which change less than the code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    build()
    return tmp_path_factory.mktemp("mutants")


@pytest.fixture(scope="module")
def outcomes(folder: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Outcome]]]:
    """Builds and runs the mutants of the selected tests, one on each core."""

    def try_out(suite: Suite, mutant: Mutant) -> Outcome:
        return run(link(folder / mutant.name, suite, mutant), suite)

    parameters = (getattr(item, "callspec", None) for item in request.session.items)
    selected = {spec.params["mutant"] for spec in parameters if spec and "mutant" in spec.params}
    with ThreadPoolExecutor(JOBS) as pool:
        yield {
            mutant.name: pool.submit(try_out, suite, mutant)
            for suite, mutant in ALL
            if mutant in selected
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.soak
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_the_sources_as_they_are_pass(folder: Path, suite: Suite) -> None:
    result = run(link(folder / suite.name, suite), suite, timeout_s=300)
    assert result is not None, "the tests did not end"
    assert result.returncode == 0, result.stdout
    assert "PASSED" in result.stdout and "0 tests" not in result.stdout
    assert not what_found_it(result)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=[pytest.mark.soak] * (index % SOAKED > 0))
        for index, (_, mutant) in enumerate(ALL)
    ],
)
def test_a_planted_mistake_is_found(outcomes: dict[str, Future[Outcome]], mutant: Mutant) -> None:
    result = outcomes[mutant.name].result()
    assert what_found_it(result), (
        "the tests did not end"
        if result is None
        else f"no assertion failed: {result.stdout[-500:]}"
    )
