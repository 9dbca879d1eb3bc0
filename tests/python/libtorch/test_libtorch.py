"""LibTorch programs: the checks of checks.cc and the example, built as users build them."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backends import GLOO
from built import LAUNCH, build, run
from host_ranks import outputs, places_of_ranks, start_each

import ciranda

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples/cpp"
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
CHECKS_OF_FOUR_RANKS, CHECKS = (
    re.findall(r'^    \{"(\w+)"', rows, re.M)
    for rows in (HERE / "checks.cc").read_text().split("kChecks = {")
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(HERE, tmp_path_factory.mktemp("programs")) / "programs"


def start(program: Path, ranks: int) -> str:
    """What they printed: one start runs all checks."""
    command = [*LAUNCH, "-np", str(ranks), program, "checks"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout + done.stderr


def require_passed(check: str, ranks: int, said: str) -> None:
    for rank in range(ranks):
        assert f"[{rank}] passed {check}\n" in said, "\n".join(said.splitlines()[-20:])


@pytest.fixture(scope="module", params=[1, 2])
def outcome(request: pytest.FixtureRequest, program: Path) -> tuple[int, str]:
    """The number of ranks, and what they printed."""
    return request.param, start(program, request.param)


@pytest.fixture(scope="module")
def said_by_four(program: Path) -> str:
    return start(program, 4)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", CHECKS)
def test_check_passes_on_every_rank(outcome: tuple[int, str], check: str) -> None:
    require_passed(check, *outcome)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", CHECKS_OF_FOUR_RANKS)
def test_check_passes_on_each_of_four_ranks(said_by_four: str, check: str) -> None:
    require_passed(check, 4, said_by_four)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("what", "workers"), [("rounds", 2), ("worker", 1), ("downpour", 1), ("easgd", 1)]
)
def test_servers_train(program: Path, what: str, workers: int) -> None:
    said = run(*LAUNCH, "-np", workers, "--ps", 2, program, "served", what)
    assert said.count("passed\n") == workers


@pytest.mark.timeout(600)
def test_autotuning_changes_no_result(program: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    tune = ["--autotune", "--autotune-log-file", log, "--autotune-steps-per-sample", 1]
    run(*LAUNCH, "-np", 2, *tune, "--autotune-warmup-samples", 0, program, "checks", "tuned")
    first, *tried = log.read_text().splitlines()
    assert first.startswith("torch::optim::Adam, 4 parameters, 2 ranks; at most ")
    assert any(line.startswith("shared_step=False instead of auto: ") for line in tried)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("how", "cause"), [("killed", "SIGKILL"), ("throws", "an error of its own")]
)
def test_a_rank_that_only_lost_its_peer_is_a_victim(program: Path, how: str, cause: str) -> None:
    command = [*LAUNCH, "-np", "2", program, "uncaught", how]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "rank 0: failed only because rank 1 was lost" in done.stderr, done.stderr
    assert "ciranda: the program did not catch this error: " in done.stdout + done.stderr
    assert cause in done.stderr
    assert "also failed" not in done.stderr


@pytest.mark.timeout(600)
def test_two_gloos_reduce_in_one_process(program: Path, tmp_path: Path) -> None:
    if why := GLOO.missing():
        pytest.skip(why)
    launch = [*LAUNCH, "-np", 2, "--cpu-operations", "gloo", "--trusted-network"]
    said = run(*launch, program, "both_gloos", tmp_path / "meeting_point")
    assert sorted(said.splitlines()) == ["[0] both reduced", "[1] both reduced"]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(EXAMPLE, tmp_path_factory.mktemp("example")) / "mnist"


@pytest.mark.timeout(600)
def test_the_example_trains_on_two_hosts_with_one_timeline(
    example: Path, make_network: Callable[..., Any], tmp_path: Path
) -> None:
    network = make_network(2, addresses=("ipv4",))
    trace = tmp_path / "traces/trace.json"
    trace.parent.mkdir()
    places = places_of_ranks(network, tmp_path, ranks_per_host=2)
    ranks = start_each(network, places, [str(example)], CIRANDA_TIMELINE=str(trace))
    said = outputs(ranks)
    # main() has returned without a shutdown().
    assert [rank.returncode for rank in ranks] == [0] * 4, said
    assert "epoch 3: loss" in said[0]
    assert list(trace.parent.iterdir()) == [trace]
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 2, 3}


@pytest.mark.timeout(600)
def test_the_example_trains_on_random_images_and_on_fashion_mnist(
    example: Path, tmp_path: Path
) -> None:
    assert "epoch 3: loss" in run(example)
    assert "[0] epoch 3: loss" in run(*LAUNCH, "-np", 2, example)
    if not FASHION_MNIST.is_dir():
        pytest.skip("dataset-fashion-mnist is not installed")
    for packed in FASHION_MNIST.glob("*.gz"):
        (tmp_path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    said = run(*LAUNCH, "-np", 2, example, tmp_path, 1)
    (accuracy,) = re.findall(r"accuracy ([\d.]+)", said)
    assert float(accuracy) > 80, said


@pytest.mark.timeout(600)
def test_the_elastic_example_trains_on_though_a_rank_is_killed(example: Path) -> None:
    program = example.parent / "mnist_elastic"
    job = subprocess.Popen(
        [*LAUNCH, "-np", "2", "--min-np", "1", program, "", "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert "epoch 1: loss" in job.stdout.readline()
    os.kill(max(processes_of(program)), signal.SIGKILL)
    said, told = job.communicate(timeout=120)
    assert job.returncode == 0, told
    assert "epoch 30: loss" in said
    assert "was killed by SIGKILL" in told


def processes_of(program: Path) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours
            if os.readlink(folder / "exe") == str(program):
                found.append(int(folder.name))
    return found


def test_another_torch_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libtorch_cpu.so").touch()
    version = tmp_path / "include/torch/headeronly/version.h"
    version.parent.mkdir(parents=True)
    version.write_text("#define TORCH_VERSION_MAJOR 1\n#define TORCH_VERSION_MINOR 13\n")
    prefix = f"-DCMAKE_PREFIX_PATH={ciranda.cmake_prefix_path().split(';')[0]}"
    done = subprocess.run(
        [
            *("cmake", "-G", "Ninja", "-S", EXAMPLE, "-B", tmp_path / "build", prefix),
            f"-Dciranda_LIBTORCH_CPU={tmp_path}/lib/libtorch_cpu.so",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert "ciranda was built for torch 2." in said
    assert "is 1.13" in said


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, r"usage: mnist .*\n"),
        (["--nonsense"], 2, r"usage: mnist .*\n"),
        (["folder", "many"], 2, r"usage: mnist .*\n"),
        (["/nowhere"], 1, r"mnist: .*/nowhere.*\n"),
    ],
)
def test_the_example_answers_with_one_line(
    example: Path, arguments: list[str], code: int, said: str
) -> None:
    done = subprocess.run([example, *arguments], capture_output=True, text=True)
    assert done.returncode == code
    assert re.fullmatch(said, done.stdout + done.stderr), done.stdout + done.stderr
