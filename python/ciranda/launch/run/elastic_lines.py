"""Words the changes of an elastic job, for the console and the failure block. Pure."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from ciranda._member import EndReason, News, NewsKind
from ciranda.launch.plan.elastic import ElasticLimits
from ciranda.launch.run.failure import FOR_MEMORY, signal_name


@dataclass(frozen=True)
class Departure:
    """The end of a process."""

    exit_code: int  # negative: the negated number of a signal
    cause: str  # such as `ValueError: boom (exit code 1)`
    for_memory: bool = False  # the kernel has killed it, because memory ran out
    host: str = ""  # that was lost, and the process with it; empty: it ended by itself

    @property
    def words(self) -> str:
        """Completes a sentence that begins with the process."""
        if self.host:
            return f"was lost with host {self.host}"
        if self.exit_code == 0:
            return "left early with exit code 0"
        if self.exit_code < 0:
            return f"was killed by {self.short}"
        return f"failed: {self.cause}"

    @property
    def short(self) -> str:
        if self.host:
            return f"with host {self.host}"
        if self.exit_code < 0:
            return signal_name(-self.exit_code) + self.for_memory * FOR_MEMORY
        return self.cause


class Changes:
    """The processes of an elastic job by incarnation: which are members, and which were lost.

    Each method that returns text returns a line for the console, or nothing to say.
    """

    def __init__(self, limits: ElasticLimits) -> None:
        self._limits = limits
        self._slots: dict[int, int] = {}
        self._departures: dict[int, Departure] = {}
        self._members: Sequence[int] = ()  # of the newest epoch that was formed
        self._left: Sequence[int] = ()  # members, or those that wait for others after a loss
        self._lost: dict[int, int] = {}  # members that were lost, in this order -> their rank
        self._told: set[int] = set()  # processes whose end the console has shown
        self._killed: set[int] = set()  # by the arbiter
        self._named: set[int] = set()  # processes that the arbiter has made members
        self._lost_hosts: set[str] = set()  # that have not come back
        self._joined = 0

    def started(self, incarnation: int, slot: int) -> str:
        """Returns a line for the slot's log if another process had it before."""
        before = [each for each, its in self._slots.items() if its == slot]
        self._slots[incarnation] = slot
        if not before:
            return ""
        return (
            f"process {incarnation} of the job takes the place of process {before[-1]}, which "
            f"{self._departures[before[-1]].words}"
        )

    def named(self, incarnation: int) -> None:
        """The arbiter has made the process a member."""
        self._named.add(incarnation)

    def ended(self, incarnation: int, departure: Departure) -> None:
        self._departures[incarnation] = departure
        if departure.exit_code != 0 and incarnation in self._members:
            self._lost[incarnation] = self._members.index(incarnation)

    def killed(self, incarnation: int) -> None:
        """The arbiter ends the process. That is told only if it was a member."""
        self._killed.add(incarnation)

    def host_lost(self, host: str, why: str, incarnations: Sequence[int]) -> str:
        """Notes the host's processes as ended. Words the loss if the host had no ranks."""
        self._lost_hosts.add(host)
        for each in incarnations:
            self.ended(each, Departure(-signal.SIGKILL, why, host=host))
        if self._named.intersection(incarnations):
            return ""  # the arbiter tells of it
        self._told.update(incarnations)
        return f"host {host} was lost: {why}"

    def host_leaves(self, host: str, why: str) -> str:
        return f"host {host} leaves: {why}"

    def host_joins(self, host: str) -> str:
        return f"host {host} is there"

    def host_returned(self, host: str) -> str:
        self._lost_hosts.discard(host)
        return f"host {host} is back"

    def knows_ends(self, news: News) -> bool:
        """Returns True if it is known how the processes have ended that the news name as lost."""
        return all(incarnation in self._departures for incarnation, _ in news.lost)

    def is_member(self, incarnation: int) -> bool:
        return incarnation in self._members

    def slot_and_end(self, incarnation: int) -> tuple[int, int, bool]:
        """Returns what News.ended() is told of a process that has ended."""
        departure = self._departures[incarnation]
        return self._slots[incarnation], departure.exit_code, departure.for_memory

    def outsider_lost(self, incarnation: int, is_replaced: bool) -> str:
        """Words the end of a process that is no member, if no line has told it yet."""
        departure = self._departures[incarnation]
        if departure.exit_code == 0 or incarnation in self._told | self._killed:
            return ""
        self._told.add(incarnation)
        then = "; it is started again" if is_replaced else ""
        return f"{self._name(incarnation)} {departure.words}{then}"

    def told(self, news: News) -> str:
        if news.kind == NewsKind.formed:
            return self._formed(news)
        if news.kind == NewsKind.waiting:
            return self._waiting(news)
        if news.kind == NewsKind.no_more_starts:
            return self._no_more_starts(news.incarnation)
        if news.kind == NewsKind.ended_late:
            return self._ended_late(news.incarnation)
        self._told.add(news.incarnation)
        if news.kind == NewsKind.silent:
            return (
                f"{self._name(news.incarnation)} has stood still for {self._limits.lease_s:g} s "
                "(stopped, or frozen), and is killed"
            )
        return (
            f"{self._name(news.incarnation)} sent bytes that are no message, and is killed; does "
            "the program use another version of ciranda?"
        )

    def summary(self) -> str:
        """Returns the line at the end of a job that had losses."""
        if not self._lost:
            return ""
        were = _count(len(self._lost), "rank was", "ranks were")
        joined = f" and {self._joined} joined" if self._joined else ""
        return f"{were} lost{joined}: {', '.join(self.losses())}"

    def losses(self) -> tuple[str, ...]:
        """Returns all lost members, such as `rank 2 (SIGKILL)`."""
        return tuple(
            f"{self._rank_words(each, rank)} ({self._departures[each].short})"
            for each, rank in self._lost.items()
        )

    def left_early(self, incarnation: int, step: int) -> str:
        """Words why a job ends in which a rank has ended its program before the others."""
        return (
            f"{self._name(incarnation)} has ended its program, and others need it at step "
            f"{step:,}; let every rank do the same steps before it ends"
        )

    def end_cause(self, reason: EndReason) -> str:
        """Words why a job that has lost too much ends."""
        limits = self._limits
        left = sum(each not in self._departures for each in self._left)
        too_few = f"{_are(left)} left, --min-np is {limits.min_np}"
        if reason == EndReason.no_state:
            return "no rank is left that holds the state of the training"
        if reason == EndReason.reset_limit:
            return f"{too_few}, and --reset-limit {limits.reset_limit} allows no more starts"
        if reason == EndReason.stuck:
            return "ranks were lost again and again at one step, which would be redone for ever"
        if reason == EndReason.unfinished:
            return (
                "a rank was lost after the training, before its program ended, and no process "
                "could do the rest of it"
            )
        timeout_s = f"{limits.elastic_timeout_s:g} s"
        if self._lost_hosts:
            hosts = ", ".join(sorted(self._lost_hosts))
            return (
                f"{too_few}, and {timeout_s} (--elastic-timeout) were not enough for others to "
                f"come; lost hosts: {hosts}"
            )
        if self._left:
            return f"{too_few}, and too few others were ready after {timeout_s} (--elastic-timeout)"
        return (
            f"fewer than {limits.min_np} ranks (--min-np) were ready in time: --elastic-timeout is "
            f"{timeout_s}"
        )

    def _formed(self, news: News) -> str:
        is_first = not self._members
        self._members = self._left = news.members
        self._joined += 0 if is_first else len(news.joined)
        losses = self._losses_of(news)
        step = f"at step {news.step:,}"
        if is_first and not losses:
            missing = self._limits.np - len(news.members)
            if missing <= 0:
                return ""
            return (
                f"{_ranks(len(news.members), 'begins', 'begin')} after {news.since_s:.0f} s, as "
                f"{_count(missing, 'other is', 'others are')} not ready"
            )
        if news.lost:
            go = _ranks(len(news.members), "goes", "go")
            # A line told of losses before may be far above, so that "it" would be no word for them.
            parts = [*losses, *([] if is_first else self._newcomers(news))] if losses else []
            return "; ".join([*parts, f"{go} on after {news.since_s:.2f} s {step}"])
        if news.since_s > 0:
            count = _count(len(news.members), "rank", "ranks")
            return f"back to {count} after {news.since_s:.1f} s {step}"
        return f"{_ranks(len(news.members), 'goes', 'go')} on {step}"

    def _newcomers(self, news: News) -> list[str]:
        """Words where the new members of an epoch come from that follows a loss."""
        emptied = [self._slots[incarnation] for incarnation, _ in news.lost]
        again = sum(self._slots[each] in emptied for each in news.joined)
        spares = len(news.joined) - again
        words = []
        if spares:
            takes = "a spare takes its place" if len(news.lost) == 1 else "a spare joins"
            words.append(takes if spares == 1 else f"{spares} spares join")
        if again:
            it = "it was started again" if len(news.lost) == 1 else "a lost one was started again"
            words.append(it if again == 1 else f"{again} were started again")
        return words

    def _waiting(self, news: News) -> str:
        self._left = news.members
        limits = self._limits
        wait = _ranks(len(news.members), "waits", "wait")
        then = f"{wait} up to {limits.elastic_timeout_s:g} s for others, as --min-np is "
        return "; ".join([*self._losses_of(news), f"{then}{limits.min_np}"])

    def _losses_of(self, news: News) -> list[str]:
        """Words the losses that have not been told yet, as one part of a line."""
        self._lost |= dict(news.lost)
        new = [(each, rank) for each, rank in news.lost if each not in self._told]
        self._told.update(each for each, _ in new)
        hosts = {self._departures[each].host: self._departures[each].cause for each, _ in new}
        words = [f"host {host} was lost: {why}" for host, why in hosts.items() if host]
        words += [
            f"{self._rank_words(each, rank)} {self._departures[each].words}"
            for each, rank in new
            if not self._departures[each].host
        ]
        return [", ".join(words)] if words else []

    def _no_more_starts(self, incarnation: int) -> str:
        self._told.add(incarnation)
        return (
            f"{self._name(incarnation)} {self._departures[incarnation].words}; it is not started "
            f"again, as --reset-limit is {self._limits.reset_limit}"
        )

    def _ended_late(self, incarnation: int) -> str:
        self._lost.pop(incarnation, None)
        self._told.add(incarnation)
        return (
            f"{self._name(incarnation)} {self._departures[incarnation].words} after its program "
            "had ended; that counts"
        )

    def _name(self, incarnation: int) -> str:
        if incarnation in self._members:
            return self._rank_words(incarnation, self._members.index(incarnation))
        slot = self._slots[incarnation]
        if slot >= self._limits.np:
            return f"the spare in slot {slot}"
        return f"the process in slot {slot}, which was no rank yet,"

    def _rank_words(self, incarnation: int, rank: int) -> str:
        slot = self._slots[incarnation]
        return f"rank {rank}" if rank == slot else f"rank {rank} (slot {slot})"


def _ranks(count: int, one_does: str, many_do: str) -> str:
    return _count(count, f"rank {one_does}", f"ranks {many_do}")


def _are(count: int) -> str:
    return _ranks(count, "is", "are") if count else "no rank is"


def _count(count: int, one: str, many: str) -> str:
    return f"1 {one}" if count == 1 else f"{count} {many}"
