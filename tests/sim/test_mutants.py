"""Would the simulation notice a mistake? Each of these planted ones must make it fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from .mutants import MUTANTS, Mutant, Workshop, simulate

Outcome = subprocess.CompletedProcess[str] | None  # None: it did not end

pytestmark = [
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no compiler"),
    pytest.mark.timeout(600),  # compiles as much as a small build, on a machine that may be busy
    pytest.mark.slow,
]

JOBS = min(2, os.cpu_count() or 1)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    made = Workshop(tmp_path_factory.mktemp("mutants"))
    made.unmutated = made.build(jobs=JOBS)
    return made


@pytest.fixture(scope="module")
def outcomes(
    workshop: Workshop, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[Outcome]]]:
    """Builds and runs the mutants of the selected tests, one on each core."""

    def try_out(mutant: Mutant) -> Outcome:
        return simulate(workshop.build_mutant(mutant))

    parameters = (getattr(item, "callspec", None) for item in request.session.items)
    selected = [spec.params["mutant"] for spec in parameters if spec and "mutant" in spec.params]
    with ThreadPoolExecutor(JOBS) as pool:
        yield {mutant.name: pool.submit(try_out, mutant) for mutant in selected}
        pool.shutdown(cancel_futures=True)


def test_the_sources_as_they_are_pass(workshop: Workshop) -> None:
    result = simulate(workshop.unmutated, timeout_s=300)
    assert result is not None, "the simulation did not end"
    assert result.returncode == 0, result.stdout


def test_names_are_unique_and_there_are_enough() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_mistake_is_found(outcomes: dict[str, Future[Outcome]], mutant: Mutant) -> None:
    result = outcomes[mutant.name].result()
    assert result is None or result.returncode != 0, "10,000 schedules did not notice it"
