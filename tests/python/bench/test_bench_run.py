"""`ciranda bench` as a user calls it: real ranks of both sides, what is refused, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ciranda.bench import measuring, session, sides_here
from ciranda.bench.case import Case
from ciranda.bench.cli import bench_command
from ciranda.bench.measuring import Measured
from ciranda.bench.record import Record, write_json
from ciranda.bench.row import Row, Timing
from ciranda.netns.namespace import obstacle


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(bench_command, arguments, prog_name="ciranda bench")


def test_a_run_verifies_and_times_every_row_of_every_side(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "ciranda",
        "bench",
        "-np",
        "2",
        "--max-bytes",
        "4K",
        "--factor",
        "32",
    ]
    command += ["--rounds", "1", "--op", "all", "--backends", "shm", "--peers", "c10d"]
    command += ["--json", "out.json", "--csv", "out.csv"]
    long = tmp_path / ("long" * 25)  # too long for a socket in it
    long.mkdir()
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(long)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr

    record = json.loads((tmp_path / "out.json").read_text())
    rows = {(row["side"], row["op"], row["size"]): row for row in record["rows"]}
    ops = ["allreduce", "allgather", "broadcast", "reducescatter", "alltoall"]
    for side in ("shm", "c10d"):
        for op in ops:
            whole = op in ("allreduce", "broadcast")  # the others have a piece for each rank
            found = [size for of, its_op, size in rows if (of, its_op) == (side, op)]
            assert found == [4 if whole else 8, 128, 4096], (side, op)
    assert len(record["rows"]) == len(rows)
    assert {row["wrong"] for row in rows.values()} == {0}
    assert all(row["time_us"] > 0 and len(row["rounds_us"]) == 1 for row in rows.values())
    assert record["command"][-4:] == ["--json", "out.json", "--csv", "out.csv"]
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1 + len(rows)
    assert "# allreduce: ciranda, shm" in ran.stdout
    assert "shm's speed ÷ best peer's" in ran.stdout


def test_two_hosts_are_made_of_this_one_and_joined_by_the_ring(tmp_path: Path) -> None:
    if why := obstacle():
        pytest.skip(why)
    command = [sys.executable, "-m", "ciranda", "bench", "--two-hosts", "--max-bytes", "4K"]
    command += ["--factor", "32", "--rounds", "1", "--backends", "ring", "--peers", "c10d"]
    ran = subprocess.run(
        [*command, "--json", "out.json"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    record = json.loads((tmp_path / "out.json").read_text())
    assert record["hosts"] == 2
    assert {row["wrong"] for row in record["rows"]} == {0}
    assert [row["side"] for row in record["rows"]] == ["ring", "c10d"] * 3
    assert "# allreduce: ciranda, ring" in ran.stdout
    result = bench("--compare", str(tmp_path / "out.json"))
    assert "was measured with --two-hosts, and this run is without it" in result.stderr


def test_help_needs_neither_torch_nor_matplotlib() -> None:
    program = """
import sys
from ciranda.bench.cli import bench_command
bench_command.main(["--help"], standalone_mode=False)
assert not {"torch", "matplotlib", "mpi4py"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-H", "node1:2"], "-H: bench measures this host"),
        (["-np", "0"], "-np must be 1 to 256 ranks, not 0"),
        (["--two-hosts", "-np", "1"], "--two-hosts needs -np 2 or more, a rank for each host"),
        (["--two-hosts", "--device", "cuda"], "--two-hosts measures with --device cpu only"),
        (["--rounds", "0"], "--rounds must be at least 1, not 0"),
        (["--op", "allreduce,reduce"], "--op: there is no 'reduce'"),
        (["--backends", "nccl"], "--backends: there is no 'nccl'; there are shm, ring, gloo"),
        (["--backends", "ring"], "--backends ring: joins hosts, and this is one host"),
        (["--backends", "none", "--peers", "none"], "there is nothing to measure"),
        (["--min-bytes", "8", "--max-bytes", "4"], "--min-bytes 8 is more than --max-bytes 4"),
        (["--factor", "1"], "--factor must be at least 2, not 1"),
        (["--fail-below", "0.9"], "--fail-below needs --compare"),
        (["--compare", "no.json"], "--compare no.json: No such file or directory"),
        (["--json", "no/such/out.json"], "--json no/such/out.json: there is no such folder"),
        (["--max-bytes", "16G"], "give a smaller --max-bytes"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(arguments: list[str], sentence: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("ciranda bench: ")
    assert sentence in result.stderr


def test_a_peer_that_is_not_here_is_a_line_and_an_error_when_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sides_here.importlib.util, "find_spec", lambda _: None)
    here, absent = sides_here.find(["shm"], None, 2, "cpu")
    assert [side.name for side in here] == ["shm", "c10d", "memcpy"]
    assert absent == [sides_here.Absent("mpi", "needs mpi4py (pip install mpi4py)")]
    result = bench("--peers", "mpi")
    assert result.exit_code == 2
    assert "--peers mpi: needs mpi4py" in result.stderr
    assert "--png needs matplotlib" in bench("--png", "x.png").stderr


class Scripted:
    """A side of two ranks that does no work: rank 1 has two wrong elements, a call takes 1 ms."""

    def __init__(self, name: str, asked: list[str], refuses: str = "") -> None:
        self._name, self._asked, self._refuses = name, asked, refuses

    def ask(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        if command["do"] == "verify":
            refused = {"refused": "not that one"} if command["op"] == self._refuses else None
            return [refused or {"wrong": 0}, refused or {"wrong": 2}]
        self._asked.append(f"{self._name} {command['op']} {command['iterations']}")
        return [{"seconds": [0.001] * command["iterations"]}] * 2


def test_rounds_alternate_over_the_sides_that_have_the_collective() -> None:
    asked: list[str] = []
    cases = [Case("allreduce", 1, "float32", "sum"), Case("broadcast", 1, "float32", "none")]
    here, _ = sides_here.find(["shm"], ["c10d"], 2, "cpu")
    sides = [Scripted("shm", asked), Scripted("c10d", asked, refuses="broadcast")]
    started: list[Any] = list(zip(here, sides, strict=True))
    measured = measuring.measure(started, cases, ranks=2, rounds=2, progress=lambda _: None)

    calls = measuring.iterations_for(0.001)
    one_round = [f"shm allreduce {calls}", f"c10d allreduce {calls}", f"shm broadcast {calls}"]
    assert asked[3:] == one_round * 2  # after a trial of each
    assert measured.refused == {"c10d: not that one": ["broadcast float32 none"]}
    assert [(row.side, row.op) for row in measured.rows] == [
        ("shm", "allreduce"),
        ("c10d", "allreduce"),
        ("shm", "broadcast"),
    ]
    assert {row.wrong for row in measured.rows} == {2}
    assert {len(row.rounds_us.values) for row in measured.rows} == {2}
    assert {row.calls for row in measured.rows} == {2 * calls}


def make_row(us: float, wrong: int = 0) -> Row:
    timing = Timing("shm", True, Case("allreduce", 1, "float32", "sum"), 2, 4, wrong)
    timing.add_round([[us / 1e6]])
    return timing.row()


def measured_as(monkeypatch: pytest.MonkeyPatch, row: Row) -> None:
    """The next run starts nobody, and finds this."""

    @contextlib.contextmanager
    def nobody(*_: Any) -> Iterator[tuple[list[Any], list[Any]]]:
        yield [], []

    monkeypatch.setattr(sides_here, "running", nobody)
    monkeypatch.setattr(measuring, "measure", lambda *_: Measured([row]))


@pytest.mark.parametrize(("us", "code"), [(5, 0), (10, 0), (20, 1)])
def test_a_run_fails_below_the_ratio_and_says_which_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, us: float, code: int
) -> None:
    base = str(tmp_path / "base.json")
    machine = session.measured_machine()
    write_json(base, Record([], machine, 2, "cpu", [make_row(10)]))
    measured_as(monkeypatch, make_row(us))
    result = bench("--compare", base, "--fail-below", "0.9")
    assert result.exit_code == code, result.output
    assert ("shm allreduce 4 B float32 sum: 0.50 of the base's" in result.stderr) == (code == 1)


def test_a_slower_run_without_a_limit_is_only_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = str(tmp_path / "base.json")
    write_json(base, Record([], {"cpu": "another"}, 2, "cpu", [make_row(10)]))
    measured_as(monkeypatch, make_row(20))
    result = bench("--compare", base)
    assert result.exit_code == 0
    assert "0.50 (0.50-0.50)" in result.stdout
    assert "The base was measured on another machine: cpu another there" in result.stdout


def test_wrong_elements_are_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    measured_as(monkeypatch, make_row(10, wrong=3))
    result = bench()
    assert result.exit_code == 1
    assert "shm allreduce 4 B float32 sum: 3 elements are wrong" in result.stderr
