"""The arbiter as the launcher sees it. Its rules are tested in C++ (tests/cpp/member, sim)."""

from __future__ import annotations

import pytest

from ciranda import _member
from ciranda._member import ActionKind, EndReason, NewsKind

READY = b"\x00"
AT_END = b"\x02\x02"  # since epoch 2
BEAT = b"\x03"
OVER = b"\x01"
SECOND = 10**9


def formed(epoch: int, step: int) -> bytes:
    return bytes([1, epoch, step])


def arbiter_of_two(lease_s: float = 0.0, **options: int) -> _member.Arbiter:
    sizes = {"np": 2, "min_np": 1, "max_np": 2, "spares": 0, "reset_limit": None, **options}
    return _member.Arbiter(**sizes, elastic_timeout_s=600.0, start_timeout_s=30.0, lease_s=lease_s)


def test_a_job_goes_on_without_a_lost_rank_and_ends() -> None:
    arbiter = arbiter_of_two()
    starts = arbiter.start(0)
    assert [(each.kind, each.incarnation, each.slot) for each in starts] == [
        (ActionKind.start, 1, 0),
        (ActionKind.start, 2, 1),
    ]
    arbiter.said(1, READY, 0)
    assert arbiter.deadline_ns() == 600 * SECOND
    sends = arbiter.said(2, READY, 0)
    assert [(each.kind, each.incarnation) for each in sends] == [
        (ActionKind.send, 1),
        (ActionKind.send, 2),
    ]
    # NewEpoch 1, not planned, of 1 and 2, on one host
    assert sends[0].payload == bytes([0, 1, 0, 2, 1, 2, 0, 0])
    arbiter.said(1, formed(1, 0), 0)
    arbiter.said(2, formed(1, 0), 0)
    again, send = arbiter.exited(2, clean=False, by_signal=True, now_ns=SECOND)
    assert (again.kind, again.incarnation, again.slot) == (ActionKind.start, 3, 1)
    assert send.payload == bytes([0, 2, 0, 1, 1, 0, 0])
    (told,) = arbiter.said(1, formed(2, 5), 2 * SECOND)
    news = told.news
    assert told.kind == ActionKind.news and news is not None and news.kind == NewsKind.formed
    assert (news.epoch, news.members, news.joined, news.step) == (2, [1], [], 5)
    assert (news.lost, news.planned, news.since_s) == ([(2, 1)], False, 1.0)
    over, kill = arbiter.said(1, AT_END, 3 * SECOND)
    assert (over.payload, kill.kind, kill.incarnation) == (OVER, ActionKind.kill, 3)
    assert arbiter.exited(3, clean=False, by_signal=True, now_ns=3 * SECOND) == []
    (end,) = arbiter.exited(1, clean=True, by_signal=False, now_ns=3 * SECOND)
    assert (end.kind, end.reason) == (ActionKind.end, EndReason.finished)
    assert arbiter.deadline_ns() is None


def test_nonsense_kills_its_sender() -> None:
    arbiter = arbiter_of_two()
    arbiter.start(0)
    news, kill = arbiter.said(1, b"\xff", 0)
    assert news.news is not None and news.news.kind == NewsKind.bad_message
    assert (kill.kind, kill.incarnation) == (ActionKind.kill, 1)


def test_a_process_may_stand_still_for_the_whole_lease() -> None:
    """From just before its next beat, which is due 0.1 s after the last."""
    arbiter = arbiter_of_two(lease_s=1.0)
    arbiter.start(0)
    arbiter.said(1, BEAT, 0)
    for now_ns in range(SECOND // 4, SECOND + SECOND // 10, SECOND // 100):
        assert arbiter.tick(now_ns) == []
    news, kill = arbiter.tick(SECOND + SECOND // 10)[:2]
    assert news.news is not None and news.news.kind == NewsKind.silent
    assert (kill.kind, kill.incarnation) == (ActionKind.kill, 1)


@pytest.mark.parametrize(
    "wrong", [{"min_np": 3}, {"min_np": 0}, {"max_np": 1}, {"spares": 300}, {"reset_limit": -1}]
)
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"min_np|reset_limit"):
        arbiter_of_two(**wrong)
