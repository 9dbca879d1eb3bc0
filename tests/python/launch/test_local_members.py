"""What processes say waits while the kernel frees the memory of one that it has killed.

Others that went on at once would need memory where there is none, and the next would be killed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ciranda.launch.run import local_members
from ciranda.launch.run.event_loop import EventLoop
from ciranda.launch.run.local_members import BEAT, LocalMembers


class Job(LocalMembers):
    """Two processes, played by the test, and a kernel that kills."""

    def __init__(self, loop: EventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kills = 3  # of a job before
        monkeypatch.setattr(local_members, "kills_in_own_cgroup", lambda: self.kills)
        self.heard: list[tuple[int, bytes]] = []
        nobody: Any = None
        super().__init__(nobody, nobody, loop, lambda *said: self.heard.append(said), stdin=-1)
        self.loop = loop
        self.processes: dict[int, socket.socket] = {}
        for number, incarnation in enumerate((7, 8)):
            self.start_member(number, incarnation)

    def start_one(self, number: int, incarnation: int, member: int) -> None:
        self.processes[incarnation] = socket.socket(fileno=os.dup(member))

    def says(self, incarnation: int, message: bytes) -> None:
        self.processes[incarnation].send(message)
        self.loop.turn(10)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    with EventLoop() as loop:
        job = Job(loop, monkeypatch)
        yield job
        for number, process in enumerate(job.processes.values()):
            process.close()
            if number in job._members:
                job.settle(number)


def test_messages_pass_on_at_once(job: Job) -> None:
    job.says(7, b"ready")
    assert job.heard == [(7, b"ready")]
    assert job.deadline() is None


def test_after_a_kill_for_memory_messages_wait_for_an_end(job: Job) -> None:
    job.kills += 1
    job.says(7, b"lost")
    job.says(7, b"another")
    assert job.heard == []
    job.settle(1)
    assert job.heard == [(7, b"lost"), (7, b"another")]
    job.says(7, b"formed")
    assert job.heard[2:] == [(7, b"formed")]


def test_beats_do_not_wait(job: Job) -> None:
    """Else all processes here would be taken for silent, with a short --lease."""
    job.kills += 1
    job.says(7, b"lost")
    job.says(8, BEAT)
    assert job.heard == [(8, BEAT)]


def test_after_the_kill_of_a_child_messages_wait_for_a_limited_time(job: Job) -> None:
    job.kills += 1
    job.says(8, b"ready")
    deadline = job.deadline()
    assert deadline is not None
    job.tick(deadline - 0.001)
    assert job.heard == []
    job.tick(deadline)
    assert job.heard == [(8, b"ready")]
    assert job.deadline() is None
