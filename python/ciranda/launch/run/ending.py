"""Decides when and how a job is ended. Pure: the caller passes in events and the time."""

from __future__ import annotations

import enum
import signal

VICTIMS_GRACE_S = 2.0  # for survivors of a dead rank to notice it and to write their error files
INTERRUPT_GRACE_S = 5.0  # for `except KeyboardInterrupt: save()`
TERMINATE_GRACE_S = 5.0
CHECKPOINT_GRACE_S = 120.0  # instead, for servers that write a last checkpoint
CUT_SHORT_GRACE_S = 1.0  # instead, so that a job that lost a host is gone everywhere within 5 s
KILL_GRACE_S = 12.0  # longer than the supervisor itself tries (KILL_LIMIT_S)


class Reason(enum.Enum):
    FINISHED = "finished"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"
    TERMINATED = "terminated"
    HUNG_UP = "hung up"
    QUIT = "quit"


class Step(enum.IntEnum):
    """The progress of an ending, which never decreases."""

    RUN = 0
    WAIT = 1  # a rank has failed; other ranks may still notice it themselves
    INTERRUPT = 2
    TERMINATE = 3
    KILL = 4
    GIVE_UP = 5  # the supervisor does not obey: kill it


# Signals that tell the launcher to end the job.
REASONS = {
    signal.SIGINT: Reason.INTERRUPTED,
    signal.SIGTERM: Reason.TERMINATED,
    signal.SIGHUP: Reason.HUNG_UP,
    signal.SIGQUIT: Reason.QUIT,
}
_GRACE_S = {
    Step.WAIT: VICTIMS_GRACE_S,
    Step.INTERRUPT: INTERRUPT_GRACE_S,
    Step.TERMINATE: TERMINATE_GRACE_S,
    Step.KILL: KILL_GRACE_S,
}
_NEXT = {
    Step.WAIT: Step.TERMINATE,
    Step.INTERRUPT: Step.TERMINATE,
    Step.TERMINATE: Step.KILL,
    Step.KILL: Step.GIVE_UP,
}


class Ending:
    """The state of one job's ending."""

    def __init__(self, *, now: float, timeout_s: float | None) -> None:
        self.reason = Reason.FINISHED
        self.step = Step.RUN
        self._deadline = None if timeout_s is None else now + timeout_s

    @property
    def deadline(self) -> float | None:
        """The time at which `tick` has something to do; None: never."""
        return self._deadline

    @property
    def by_launcher(self) -> bool:
        """True if a rank that ends now was told to end."""
        return self.step >= Step.INTERRUPT

    def rank_failed(self, now: float) -> None:
        if self.step is Step.RUN:
            self.reason = Reason.FAILED
            self._go(Step.WAIT, now)

    def cut_short(self, now: float) -> None:
        """Ends the job at once after a host was lost or a process could not be started."""
        if self.step is Step.RUN:
            self.reason = Reason.FAILED
        if self.step < Step.TERMINATE:
            self._go(Step.TERMINATE, now)
        if self.step is Step.TERMINATE and self._deadline is not None:
            self._deadline = min(self._deadline, now + CUT_SHORT_GRACE_S)

    def give_up(self, now: float) -> None:
        """Ends an elastic job that has lost too much. The ranks that are left may still save."""
        if self.step is Step.RUN:
            self.reason = Reason.FAILED
            self._go(Step.TERMINATE, now)

    def signalled(self, number: int, now: float) -> None:
        """Handles a signal that tells the launcher to end the job. Only the first is polite."""
        if self.step is Step.RUN:
            self.reason = REASONS[signal.Signals(number)]
            self._go(Step.INTERRUPT if number == signal.SIGINT else Step.TERMINATE, now)
        elif self.step is Step.WAIT or (self.step is Step.INTERRUPT and number != signal.SIGINT):
            self._go(Step.TERMINATE, now)
        elif self.step < Step.KILL:
            self._go(Step.KILL, now)

    def tick(self, now: float) -> None:
        if self._deadline is None or now < self._deadline:
            return
        if self.step is Step.RUN:
            self.reason = Reason.TIMED_OUT
            self._go(Step.TERMINATE, now)
        else:
            self._go(_NEXT[self.step], now)

    def _go(self, step: Step, now: float) -> None:
        assert step > self.step, "an ending never goes back"  # noqa: S101 - our own invariant
        self.step = step
        grace_s = _GRACE_S.get(step)
        self._deadline = None if grace_s is None else now + grace_s
