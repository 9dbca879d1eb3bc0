"""The real Slurm with two nodes, which are hosts of the test's network: breaks when ranks, or
launchers, take their place or where they meet from the wrong variable."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks import clean_environment
from slurm_cluster import SlurmCluster, skip_where_missing

PLACE = str(Path(__file__).parent / "place.py")
CIRANDA = (sys.executable, "-m", "ciranda")
GONE_S = 5.0  # promised: everything everywhere has ended within that time
LIMIT_S = 60.0
TWO_TASKS_EACH = ("--nodes=2", "--ntasks-per-node=2")
ONE_TASK_EACH = ("--nodes=2", "--ntasks-per-node=1")


class Nodes:
    """node0 and node1 of a Slurm; commands run on node0."""

    def __init__(self, hosts: list[Any], slurm: SlurmCluster, folder: Path) -> None:
        self.hosts = hosts
        self.key_file = str(folder / "key")
        self.environment = {
            **clean_environment(),
            **slurm.environment,
            "XDG_RUNTIME_DIR": "/run",  # which hosts do not share, unlike their other files
            "TMPDIR": str(folder),
        }
        hosts[0].check([*CIRANDA, "key", self.key_file], env=self.environment)

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = self.hosts[0].popen(
            command,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return process

    def run(self, *command: str, **variables: str) -> str:
        """What it prints; it must succeed."""
        process = self.start(*command, **variables)
        said, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, said
        return said

    def kill(self, rank: dict[str, Any]) -> None:
        self.hosts[rank["cross_rank"]].check(["kill", "-KILL", str(rank["pid"])])


@pytest.fixture
def nodes(make_network: Callable[..., Any], tmp_path: Path) -> Iterator[Nodes]:
    skip_where_missing()
    hosts = make_network(2, addresses=("ipv4",), ssh=True).hosts
    with SlurmCluster(hosts) as slurm:
        yield Nodes(hosts, slurm, tmp_path)


def places_in(text: str) -> list[dict[str, Any]]:
    """What ranks of PLACE have printed, by rank."""
    found = [json.loads(each) for each in re.findall(r"\{.*?\}", text)]
    return sorted(found, key=lambda each: int(each["rank"]))


def assert_two_on_each(found: list[dict[str, Any]], starter: str) -> None:
    assert [each.pop("pid") > 0 for each in found] == [True] * 4
    assert found == [
        {
            "rank": rank,
            "size": 4,
            "local_rank": rank % 2,
            "local_size": 2,
            "cross_rank": rank // 2,
            "cross_size": 2,
            "starter": starter,
            "host": f"node{rank // 2}",
            "sum": 10.0,
        }
        for rank in range(4)
    ]


def ranks_that_stay(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Until all four have printed their place."""
    assert process.stdout is not None
    said = ""
    while len(found := places_in(said)) < 4:
        line = process.stdout.readline()
        assert line, said
        said += line
    return found


def fall_of(nodes: Nodes, process: subprocess.Popen[str], rank: dict[str, Any]) -> str:
    """Kills the rank; what the others say until all of them have ended, soon."""
    nodes.kill(rank)
    killed_s = time.monotonic()
    said, _ = process.communicate(timeout=LIMIT_S)
    assert time.monotonic() - killed_s < GONE_S, said
    assert process.returncode != 0, said
    for host in nodes.hosts:
        assert PLACE not in host.check(["sh", "-c", "cat /proc/[0-9]*/cmdline"])
        assert "ciranda" not in host.check(["ls", "/run"])
    return said


def test_ranks_of_srun_meet_and_fall_together(nodes: Nodes) -> None:
    ranks = ("srun", *TWO_TASKS_EACH, sys.executable, PLACE, "stay")
    process = nodes.start(*ranks, CIRANDA_KEY_FILE=nodes.key_file)
    found = ranks_that_stay(process)
    said = fall_of(nodes, process, found[3])
    assert_two_on_each(found, "srun")
    assert len(re.findall("RankLostError.* rank 3 ", said)) == 3, said


def test_launchers_of_srun_make_one_job_that_falls_together(nodes: Nodes) -> None:
    launcher = (*CIRANDA, "run", "--no-ssh", f"--key-file={nodes.key_file}", "-np", "2")
    process = nodes.start("srun", *ONE_TASK_EACH, *launcher, PLACE, "stay")
    found = ranks_that_stay(process)
    said = fall_of(nodes, process, found[3])
    assert_two_on_each(found, "ciranda")
    assert re.search(r"culprit +rank 3 on node1, pid", said), said
    assert re.search(r"victims +ranks 0, 1: failed only because rank 3 was lost", said), said


def test_a_launcher_in_an_allocation_takes_its_nodes_by_ssh(nodes: Nodes) -> None:
    said = nodes.run("salloc", *TWO_TASKS_EACH, *CIRANDA, "run", PLACE)
    assert_two_on_each(places_in(said), "ciranda")


def test_a_launcher_in_a_batch_script_takes_its_nodes(nodes: Nodes, tmp_path: Path) -> None:
    said, ended = tmp_path / "said", tmp_path / "ended"
    command = shlex.join([*CIRANDA, "run", "--no-color", "hostname"])
    wrap = f"--wrap={command}; touch {ended}"
    nodes.run("sbatch", "--nodes=2", "--ntasks=3", f"--output={said}", wrap)
    deadline = time.monotonic() + LIMIT_S
    while not ended.exists():  # sbatch --wait asks every ten seconds only
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert sorted(said.read_text().splitlines()) == ["[0] node0", "[1] node0", "[2] node1"]


def test_the_shell_of_an_allocation_is_no_step_that_has_ranks(nodes: Nodes) -> None:
    """salloc without a command starts it, $SHELL, as a step on the first node."""
    command = shlex.join([*CIRANDA, "run", "--no-color", "hostname"])
    salloc = shlex.join(["salloc", *TWO_TASKS_EACH])
    typed = f"echo {shlex.quote(command)} | {salloc}"
    said = nodes.run("sh", "-c", typed, SHELL="/bin/sh")
    assert sorted(re.findall(r"\[\d] node\d", said)) == [
        "[0] node0",
        "[1] node0",
        "[2] node1",
        "[3] node1",
    ], said


def test_launchers_of_two_steps_of_an_allocation_stay_apart(nodes: Nodes, tmp_path: Path) -> None:
    launcher = [*CIRANDA, "run", "--no-ssh", f"--key-file={nodes.key_file}", "-np", "1"]
    rank = ["sh", "-c", "echo $CIRANDA_RANK of $CIRANDA_RENDEZVOUS"]
    step = shlex.join(["srun", "--nodes=2", "--ntasks=2", "--overlap", *launcher, *rank])
    said = [tmp_path / name for name in ("one", "two")]
    steps = [f"{step} >{each} & {each.name}=$!" for each in said]
    nodes.run("salloc", *TWO_TASKS_EACH, "sh", "-c", "\n".join([*steps, "wait $one && wait $two"]))
    meetings = []
    for each in said:
        found = sorted(re.findall(r"(\d) of (node0:\d+)", each.read_text()))
        assert [rank for rank, _ in found] == ["0", "1"]
        meetings.append({meeting for _, meeting in found})
    assert [len(each) for each in meetings] == [1, 1] and meetings[0] != meetings[1]


def test_a_launcher_for_each_rank_is_refused_with_what_srun_will_heed(nodes: Nodes) -> None:
    launcher = [*CIRANDA, "run", "--no-ssh", f"--key-file={nodes.key_file}", "-np", "1", "true"]
    process = nodes.start("salloc", *TWO_TASKS_EACH, "srun", "--ntasks-per-node=1", *launcher)
    said, _ = process.communicate(timeout=LIMIT_S)
    advice = re.search(r"srun has started 4 tasks on 2 nodes.*; give srun (.*), and give -np", said)
    assert advice is not None, said
    assert advice[1] == "--nodes=2 --ntasks=2"
