"""A LibTorch program trains on when a rank is killed: breaks when a step or a sample is lost or
counts twice, when a rank that joins lacks something, or when the parameters are not those of a
quiet run. elastic.cc is the program."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import warm
from built import build
from launch.conftest import SSH_STAND_IN

HERE = Path(__file__).parent
SAMPLES, PASSES = 62, 3
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(HERE, tmp_path_factory.mktemp("programs")) / "programs"


Deals = dict[int, tuple[int, int, list[int]]]  # by block, its latest attempt: begin, end, indices


@dataclass
class Run:
    results: dict[int, dict[str, Any]]
    deals: dict[int, Deals]
    output: str


def launch(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["-m", "ciranda", "run", "--no-color", *map(str, arguments)]
    return warm.run(command, env=dict(os.environ), cwd=folder)


def run(
    program: Path, folder: Path, *options: str, victim: tuple[str | int, ...] = ("", 0, 0)
) -> Run:
    done = launch(folder, *options, program, "elastic", *victim)
    assert done.returncode == 0, done.stderr + done.stdout
    results = {
        int(path.name.split("-")[1]): json.loads(path.read_text())
        for path in folder.glob("result-*")
    }
    deals: dict[int, Deals] = {}
    for path in folder.glob("deals-*"):
        own = deals.setdefault(int(path.name.split("-")[1]), {})
        for line in path.read_text().splitlines():
            block, begin, end, *indices = map(int, line.split())
            own[block] = (begin, end, indices)
    return Run(results, deals, done.stderr + done.stdout)


def check_whole(result: Run) -> None:
    """Each pass has trained on each sample once, and all ranks ended with the same."""
    blocks = next(each for own, each in result.deals.items() if 0 in each and own in result.results)
    trained: list[int] = []
    for block, (begin, end, _) in blocks.items():
        assert begin == len(trained) % SAMPLES
        attempts = [each.get(block) for each in result.deals.values()]
        dealt = {i for each in attempts if each and each[:2] == (begin, end) for i in each[2]}
        assert len(dealt) == end - begin, "a sample of the block was dealt to nobody"
        trained += sorted(dealt)
    assert sorted(trained) == sorted([*range(SAMPLES)] * PASSES)
    ranks = list(result.results.values())
    for each in ranks:
        for what in ("size", "digest", "scores", "begun", "ended", "blocks", "forwards", "names"):
            assert each[what] == ranks[0][what], what
        assert each["blocks"] == len(blocks)
        assert each["begun"] == each["ended"] == each["forwards"] == each["blocks"]
        assert each["names"] == "012"
        ranks_at_first = sum(0 in deals for deals in result.deals.values())
        assert each["lr"] == pytest.approx(0.005 * each["size"] / ranks_at_first)


@pytest.fixture(scope="module")
def quiet(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(program, tmp_path_factory.mktemp("quiet"), "-np", "3", "--min-np", "2")


def test_a_quiet_job(quiet: Run) -> None:
    check_whole(quiet)
    assert sorted(each["rank"] for each in quiet.results.values()) == [0, 1, 2]


PLACES = [
    ("block", 2, 1),
    ("hook", 3, 2),
    ("backward", 2, 0),
    ("step", 2, 0),
    ("step", 5, 1),  # the last block of a pass
    ("after", 0, 2),
    ("between", 0, 1),
    ("agreed", 0, 0),
    ("agreed_after", 1, 2),
    ("end", 0, 0),
    ("result", 0, 0),
]


@pytest.mark.parametrize("victim", PLACES, ids=lambda each: f"{each[0]}-{each[2]}")
def test_a_spare_takes_the_place(
    program: Path, tmp_path: Path, quiet: Run, victim: tuple[str, int, int]
) -> None:
    options = ("-np", "3", "--min-np", "3", "--spares", "1", "--reset-limit", "0")
    result = run(program, tmp_path, *options, victim=victim)
    check_whole(result)
    assert len(result.results) == (4 if victim[0] == "result" else 3)
    (expected, *_), ranks = quiet.results.values(), result.results.values()
    for each in ranks:
        assert (each["digest"], each["scores"]) == (expected["digest"], expected["scores"])
    assert re.search(r"rank \d( \(slot \d\))? was killed by SIGKILL", result.output)


def test_a_block_of_two_optimizers_is_redone_as_a_whole(program: Path, tmp_path: Path) -> None:
    options = ("-np", "3", "--min-np", "3", "--spares", "1", "--reset-limit", "0")
    victims = [("two", "", 0, 0), ("two", "half", 0, 2), ("two", "step", 1, 0)]
    results = []
    for number, victim in enumerate(victims):
        (folder := tmp_path / str(number)).mkdir()
        results.append(run(program, folder, *options, victim=victim))
    (expected, *_) = results[0].results.values()
    assert expected["blocks"] == 5
    for each in (each for result in results for each in result.results.values()):
        assert each == expected
    assert all("was killed by SIGKILL" in each.output for each in results[1:])


@pytest.mark.parametrize("victim", [("backward", 1, 2), ("step", 4, 1)], ids=str)
def test_fewer_ranks_go_on_and_a_new_one_joins(
    program: Path, tmp_path: Path, victim: tuple[str, int, int]
) -> None:
    options = ("-np", "3", "--min-np", "1")
    result = run(program, tmp_path, *options, victim=(*victim, "and wait"))
    check_whole(result)
    assert len(result.results) == 3
    assert "back to 3 ranks" in result.output


def test_ranks_of_a_host_that_leaves_end(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text(SSH_STAND_IN)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    options = ("-H", "a:2,b:2", "--min-np", "2", "--blacklist-cooldown-range", "60", "60")
    result = run(program, tmp_path, *options, victim=("leave", 2, 2))
    check_whole(result)
    assert [each["size"] for each in result.results.values()] == [2, 2]
    assert "host b leaves: its agent got SIGTERM" in result.output
    assert "2 ranks go on" in result.output


def test_a_job_that_is_not_elastic_trains_from_the_first_ranks_state(
    program: Path, tmp_path: Path
) -> None:
    result = run(program, tmp_path, "-np", "3")
    check_whole(result)
    assert len(result.results) == 3


def test_fewer_ranks_go_on_alone(program: Path, tmp_path: Path) -> None:
    options = ("-np", "2", "--min-np", "1", "--reset-limit", "0")
    result = run(program, tmp_path, *options, victim=("step", 3, 1))
    check_whole(result)
    assert [each["size"] for each in result.results.values()] == [1]


def test_a_rank_that_finishes_early_ends_the_job(program: Path, tmp_path: Path) -> None:
    done = launch(tmp_path, "-np", 2, "--min-np", 2, "--timeout", 60, program, "elastic", "early")
    assert done.returncode == 1, done.stdout + done.stderr
    said = re.sub(r"\n│ +", " ", done.stdout + done.stderr)
    assert "rank 1 has ended its program, and others need it at step 1; let every rank" in said


MISTAKES = {
    "unregistered": "a ciranda::DistributedOptimizer<torch::optim::SGD> is not registered",
    "twice": "calls step() of an optimizer twice in one block",
    "nested": "elastic::agreed is called within a block",
    "second": "a process has one state",
    "adasum": "op = kAdasum does not work in an elastic job",
    "empty": "batch must be at least 1",
    "own": "an error of its own",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_in_a_sentence(program: Path, tmp_path: Path, mistake: str) -> None:
    done = launch(tmp_path, "-np", 1, "--min-np", 1, program, "elastic", mistake)
    assert done.returncode == 1
    assert MISTAKES[mistake] in done.stderr + done.stdout
