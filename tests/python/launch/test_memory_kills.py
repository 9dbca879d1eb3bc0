"""A wrong count would blame memory for a kill by hand, or leave a user without the reason."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ciranda.launch.run.ending import Reason
from ciranda.launch.run.failure import Evidence, RankEnd, cause_of, judge
from ciranda.launch.run.memory_kills import MemoryKills, kills_in_own_cgroup

KILLED = -signal.SIGKILL
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
V2 = "low 0\nhigh 0\nmax 41\noom 5\noom_kill 3\noom_group_kill 0\n"
HYBRID = "12:memory:/job/step\n1:name=systemd:/other\n0::/other\n"


@pytest.mark.parametrize(
    ("cgroup", "file", "text", "count"),
    [
        ("0::/job/step\n", "job/step/memory.events", V2, 3),
        ("0::/\n", "memory.events", V2, 3),
        (HYBRID, "memory/job/step/memory.oom_control", V1, 3),
        (HYBRID, "memory/memory.oom_control", V1, 3),  # a container, which sees the host's path
        (HYBRID, "memory/job/step/memory.oom_control", "under_oom 0\n", 0),
        ("0::/job/step\n", "another/file", V2, 0),
        ("", "memory.events", V2, 0),
    ],
)
def test_the_count_is_that_of_the_own_cgroup(
    tmp_path: Path, cgroup: str, file: str, text: str, count: int
) -> None:
    path = tmp_path / "mount" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (tmp_path / "cgroup").write_text(cgroup)
    assert kills_in_own_cgroup(str(tmp_path / "cgroup"), str(tmp_path / "mount")) == count


def test_each_kill_explains_one_end() -> None:
    counts = iter([7, 9, 9, 9, 10, 10])
    kills = MemoryKills(lambda: next(counts))
    assert [kills.explain(KILLED) for _ in range(3)] == [True, True, False]
    assert not kills.explain(1)  # its worker was killed, and it has failed for that
    assert not kills.explain(KILLED)
    assert not kills.explain(0)


def test_the_block_names_memory() -> None:
    end = RankEnd(1, 11, KILLED, for_memory=True)
    assert cause_of(end, None, ()) == "Killed, SIGKILL (9), as memory ran out"
    verdict = judge(Evidence(2, [end]), Reason.FAILED)
    assert verdict.cause == cause_of(end, None, ())
    assert verdict.hint.startswith("the kernel sent it")
