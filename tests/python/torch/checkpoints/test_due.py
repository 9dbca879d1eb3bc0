"""When a checkpoint is due: breaks when ranks would decide differently, or too late."""

from __future__ import annotations

from ciranda.torch.checkpoints.due import Rule, Told, Verdict, decide


def told(
    rank: int = 0,
    last: int = -1,
    age_s: float = 0,
    pace_s: float = 0,
    idle: bool = True,
    problem: str = "",
) -> Told:
    return Told(rank, last, age_s, pace_s, idle, problem)


BY_STEPS, BY_TIME = Rule(10, None), Rule(None, 60.0)


def test_steps_since_the_latest_checkpoint_count() -> None:
    assert decide(BY_STEPS, 1, [told()]) == Verdict(False, 10)
    assert decide(BY_STEPS, 10, [told()]) == Verdict(True, 20)
    assert decide(BY_STEPS, 14, [told(last=4)]) == Verdict(True, 24)
    assert decide(BY_STEPS, 13, [told(last=4)]) == Verdict(False, 14)


def test_a_rank_that_joined_does_as_the_eldest_knows() -> None:
    newcomer, old = told(0, last=-1, age_s=0), told(1, last=95, age_s=61)
    assert decide(BY_STEPS, 100, [newcomer, old]) == Verdict(False, 105)
    assert decide(BY_TIME, 100, [newcomer, old]).save


def test_a_busy_rank_puts_it_off_by_a_step() -> None:
    assert decide(BY_STEPS, 10, [told(), told(1, idle=False)]) == Verdict(False, 11)
    assert decide(BY_STEPS, 9, [told(), told(1, idle=False)]) == Verdict(False, 10)


def test_the_clock_is_looked_at_less_often_than_each_step() -> None:
    assert decide(BY_TIME, 5, [told(age_s=59.0)]) == Verdict(False, 6)  # no pace known yet
    assert decide(BY_TIME, 5, [told(age_s=20.0, pace_s=0.1)]) == Verdict(False, 205)
    assert decide(BY_TIME, 5, [told(age_s=59.9, pace_s=0.1)]) == Verdict(False, 6)
    assert decide(BY_TIME, 5, [told(age_s=0.0, pace_s=1e-6)]) == Verdict(False, 1005)
    assert decide(BY_TIME, 5, [told(age_s=60.0, pace_s=0.1)]) == Verdict(True, 305)


def test_whichever_comes_first() -> None:
    both = Rule(10, 60.0)
    assert decide(both, 9, [told(age_s=61)]).save
    assert decide(both, 10, [told(age_s=1)]).save
    assert decide(both, 5, [told(age_s=1, pace_s=0.001)]) == Verdict(False, 10)


def test_a_failure_of_any_rank_is_told_to_all() -> None:
    assert decide(BY_STEPS, 10, [told(), told(1, problem="no disk")]).problem == "no disk"
