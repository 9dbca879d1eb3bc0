"""Finds who broke a job, from exits, error files and last lines; words the block. Pure."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ciranda.launch.errors import EXIT_SIGNAL_BASE, EXIT_TIMEOUT
from ciranda.launch.plan.processes import name_of, names_of
from ciranda.launch.run.ending import Reason

LAST_LINES = 20
_CAUSE_CHARACTERS_MAX = 500
_PENDING_SHOWN = 8
_RULE_WIDTH = 72
# Escape sequences of terminals: cursors, colours, and strings such as a title of the window.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?)")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
# What the words for SIGKILL are followed by if it came from the kernel.
FOR_MEMORY = ", as memory ran out"
_EXCEPTION_LINE = re.compile(r"[A-Za-z_][\w.]*(?::\s|\Z)")


@dataclass(frozen=True)
class RankEnd:
    """The end of one process. Ends are listed in the order in which they were reported."""

    rank: int  # number of the process, see processes.py
    pid: int
    exit_code: int  # negative: the negated number of the signal that killed it
    by_launcher: bool = False
    for_memory: bool = False  # by the kernel, because memory ran out


@dataclass(frozen=True)
class LostHost:
    """A host that was lost, with its processes."""

    name: str
    ranks: tuple[int, ...]  # numbers of processes there that had not ended
    why: str
    after: int  # number of processes that had ended before

    def __str__(self) -> str:
        ranks = f", and with it {names_of(self.ranks)}" if self.ranks else ""
        return f"the host {self.name} was lost{ranks}: {self.why}"


@dataclass(frozen=True)
class Pending:
    """A collective that a rank was waiting for."""

    op: str
    name: str
    missing_ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.op} '{self.name}'" if self.name else self.op


@dataclass(frozen=True)
class ErrorReport:
    """The content of a rank's error file."""

    message: str
    callstack: str = ""
    victim_of: int | None = None
    during: str | None = None
    pending: tuple[Pending, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The culprit of a failed job, the cause, and the ends of other processes."""

    title: str
    cause: str
    exit_code: int
    culprit: int | None = None
    alike: tuple[int, ...] = ()  # raised the same error as the culprit, which only ended first
    hint: str = ""
    during: str | None = None
    pending: tuple[Pending, ...] = ()
    victims: tuple[int, ...] = ()
    also_failed: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()  # members of an elastic job that were lost before
    ended: tuple[int, ...] = ()  # ended by the launcher
    finished: tuple[int, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """All that the launcher knows about the end of a job."""

    size: int
    ends: Sequence[RankEnd]
    reports: Mapping[int, ErrorReport] = field(default_factory=dict)
    tails: Mapping[int, Sequence[str]] = field(default_factory=dict)  # last lines of output
    lost_hosts: Sequence[LostHost] = ()
    others: frozenset[int] = frozenset()  # ranks that another launcher has started


def parse_error_file(text: str) -> ErrorReport | None:
    """Parses our error file or torchelastic's; returns None for any other. Never raises."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    top = _mapping(content)
    message = top.get("message")
    inner = _mapping(message)
    words = message if isinstance(message, str) else inner.get("message")
    ours = _mapping(top.get("ciranda"))
    if not isinstance(words, str) and not ours:
        return None
    callstack = _mapping(inner.get("extraInfo")).get("py_callstack")
    during = ours.get("in")
    pending = ours.get("pending")
    return ErrorReport(
        message=words if isinstance(words, str) else "",
        callstack=callstack if isinstance(callstack, str) else "",
        victim_of=_rank(ours.get("victim_of")),
        during=during if isinstance(during, str) else None,
        pending=tuple(map(_pending, pending)) if isinstance(pending, list) else (),
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _rank(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _pending(value: Any) -> Pending:
    entry = _mapping(value)
    missing = entry.get("missing_ranks")
    ranks = [_rank(each) for each in missing] if isinstance(missing, list) else []
    return Pending(
        op=str(entry.get("op", "collective")),
        name=str(entry.get("name", "")),
        missing_ranks=tuple(each for each in ranks if each is not None),
    )


def judge(evidence: Evidence, reason: Reason, timeout_s: float | None = None) -> Verdict:
    """Names the culprit, which is not the first to exit but the first that was no victim."""
    if reason is Reason.TIMED_OUT:
        return _judge_timeout(evidence, timeout_s or 0.0)
    reports = evidence.reports
    by_rank = {end.rank: end for end in evidence.ends}
    victims = [end.rank for end in evidence.ends if _is_victim(end, reports)]
    culprit = _find_culprit(evidence, victims)
    if evidence.lost_hosts and not _failed_before(evidence, culprit):
        return _judge_lost_host(evidence, victims)
    if culprit is None:
        return Verdict("the job failed", "no rank reported a failure", exit_code=1)
    end = by_rank.get(culprit)
    alike = _sorted(each.rank for each in evidence.ends if _raised_the_same(each, end, reports))
    others = [each for each in evidence.ends if each.rank not in (culprit, *alike)]
    during, pending = _collective(culprit, victims, reports)
    return Verdict(
        title="the job failed",
        cause=(
            "it runs on another host, whose launcher tells why it failed"
            if culprit in evidence.others
            else cause_of(end, reports.get(culprit), evidence.tails.get(culprit, ()))
        ),
        exit_code=_exit_code(end),
        culprit=culprit,
        alike=alike,
        hint=_hint(end),
        during=during,
        pending=pending,
        victims=tuple(sorted(rank for rank in victims if rank != culprit)),
        also_failed=tuple(
            f"{name_of(each.rank)}: {cause_of(each, reports.get(each.rank), ())}"
            for each in others
            if each.exit_code != 0 and not each.by_launcher and each.rank not in victims
        ),
        ended=_sorted(each.rank for each in others if _was_ended(each, victims)),
        finished=_sorted(each.rank for each in others if each.exit_code == 0),
    )


def _judge_timeout(evidence: Evidence, timeout_s: float) -> Verdict:
    return Verdict(
        title="the job took too long",
        cause=f"not finished after {timeout_s:g} s (--timeout)",
        exit_code=EXIT_TIMEOUT,
        ended=_sorted(end.rank for end in evidence.ends if end.by_launcher),
        finished=_sorted(end.rank for end in evidence.ends if not end.by_launcher),
    )


def _failed_before(evidence: Evidence, culprit: int | None) -> bool:
    """Returns true if the culprit had failed before the first host was lost."""
    before = evidence.ends[: evidence.lost_hosts[0].after]
    return any(end.rank == culprit and end.exit_code != 0 for end in before)


def _judge_lost_host(evidence: Evidence, victims: Sequence[int]) -> Verdict:
    first, *others = evidence.lost_hosts
    lost = {rank for host in evidence.lost_hosts for rank in host.ranks}
    ended = [end for end in evidence.ends if end.exit_code != 0 and end.rank not in victims]
    return Verdict(
        title="the job failed",
        cause=str(first),
        exit_code=1,
        victims=_sorted(rank for rank in victims if rank not in lost),
        also_failed=tuple(
            [str(host) for host in others]
            + [
                f"{name_of(end.rank)}: {cause_of(end, None, ())}"
                for end in ended
                if not end.by_launcher
            ]
        ),
        ended=_sorted(end.rank for end in ended if end.by_launcher),
        finished=_sorted(end.rank for end in evidence.ends if end.exit_code == 0),
    )


def _sorted(ranks: Any) -> tuple[int, ...]:
    return tuple(sorted(ranks))


def _is_victim(end: RankEnd, reports: Mapping[int, ErrorReport]) -> bool:
    report = reports.get(end.rank)
    return end.exit_code != 0 and report is not None and report.victim_of is not None


def _raised_the_same(
    end: RankEnd, first: RankEnd | None, reports: Mapping[int, ErrorReport]
) -> bool:
    """Returns true if `end` and `first` raised the same error and neither is a victim.

    Ranks that disagree about an operation all raise the same error.
    """
    if first is None or end.rank == first.rank or _is_victim(end, reports):
        return False
    report, of_first = reports.get(end.rank), reports.get(first.rank)
    if report is None or of_first is None or of_first.victim_of is not None:
        return False
    return bool(report.message) and report.message == of_first.message


def _was_ended(end: RankEnd, victims: Sequence[int]) -> bool:
    return end.by_launcher and end.exit_code != 0 and end.rank not in victims


def _find_culprit(evidence: Evidence, victims: Sequence[int]) -> int | None:
    for end in evidence.ends:
        if end.exit_code != 0 and not end.by_launcher and end.rank not in victims:
            return end.rank
    # All failed ranks were victims of a rank that left early, or that hung until it was ended.
    blamed = Counter(evidence.reports[rank].victim_of for rank in victims)
    for rank, _ in blamed.most_common():
        if rank is not None and rank not in victims and rank < evidence.size:
            return rank
    return victims[0] if victims else None


def _collective(
    culprit: int, victims: Sequence[int], reports: Mapping[int, ErrorReport]
) -> tuple[str | None, tuple[Pending, ...]]:
    """Returns the collective of the culprit's error file, else those its victims waited for."""
    own = reports.get(culprit)
    if own is not None and (own.during or own.pending):
        return own.during, own.pending
    waited: dict[Pending, None] = {}  # a set that keeps the order
    for rank in victims:
        for entry in reports[rank].pending:
            if culprit in entry.missing_ranks:
                waited[entry] = None
    return None, tuple(waited)


def cause_of(end: RankEnd | None, report: ErrorReport | None, tail: Sequence[str]) -> str:
    """Returns why a process ended, in the words of the failure block."""
    if end is None:
        return "it could not be ended"
    if end.exit_code == 0:
        return "left early with exit code 0 while others still needed it"
    if end.by_launcher and (report is None or report.victim_of is not None):
        return "it stopped answering, and the launcher ended it"
    if end.exit_code < 0 and not (report and report.message):
        return signal_words(-end.exit_code) + end.for_memory * FOR_MEMORY
    words = report.message if report is not None else ""
    first_line = (words or _last_exception(tail)).strip().partition("\n")[0]
    code = end.exit_code
    shown = signal_words(-code) if code < 0 else f"exit code {code}"
    return f"{first_line[:_CAUSE_CHARACTERS_MAX]} ({shown})" if first_line else shown


def signal_name(number: int) -> str:
    """Returns a name such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def signal_words(number: int) -> str:
    """Returns words such as `Segmentation fault, SIGSEGV (11)`."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"killed by signal {number}"
    return f"{signal.strsignal(number) or 'signal'}, {name} ({number})"


def _last_exception(tail: Sequence[str]) -> str:
    """Returns the exception of the last traceback, for a rank that died before its init()."""
    found = ""
    inside = False
    for line in tail:
        if line.startswith("Traceback (most recent call last):"):
            inside = True
        elif inside and line and not line[0].isspace():
            inside = False
            if _EXCEPTION_LINE.match(line):
                found = line
    return found


def _hint(end: RankEnd | None) -> str:
    if end is None or end.by_launcher:
        return ""
    if end.exit_code == -signal.SIGKILL and end.for_memory:
        return "the kernel sent it, at the limit of a cgroup or as the machine had no more (dmesg)"
    if end.exit_code == -signal.SIGKILL:
        return "the launcher did not send it; often the kernel does when memory runs out (dmesg)"
    number = end.exit_code - EXIT_SIGNAL_BASE
    if number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        return f"{end.exit_code} is {EXIT_SIGNAL_BASE} + {number}: a child of it died of " + (
            signal_words(number)
        )
    return ""


def _exit_code(end: RankEnd | None) -> int:
    if end is None or end.by_launcher or end.exit_code == 0:
        return 1
    return end.exit_code if end.exit_code > 0 else EXIT_SIGNAL_BASE - end.exit_code


def clean_tail(text: str, count: int = LAST_LINES) -> list[str]:
    """Returns the last lines as a terminal would show them, with bars redrawn, but no colours."""
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in lines]
    while lines and not lines[-1]:
        lines.pop()
    return lines[-count:]


@dataclass(frozen=True)
class BlockDetails:
    """The details of the block that are not in the verdict."""

    log: str
    rerun: str
    restarts: str = ""  # such as `1 of 3`; empty: no restarts are allowed
    # The next four describe the culprit.
    tail: Sequence[str] = ()
    callstack: str = ""
    pid: int | None = None
    host: str = ""
    unicode: bool = True


def render(verdict: Verdict, details: BlockDetails) -> str:
    """Returns the failure block. It is open on the right, so that paths can be copied."""
    rows: list[tuple[str, str]] = []
    if verdict.culprit is not None:
        host = f" on {details.host}" if details.host else ""
        process = f", pid {details.pid}" if details.pid is not None else ""
        culprit = f"{name_of(verdict.culprit)}{host}{process}"
        if verdict.alike:
            all_of_them = names_of(sorted([verdict.culprit, *verdict.alike]))
            culprit = f"{all_of_them}, which raised alike; shown is {culprit}"
        rows.append(("culprit", culprit))
    rows += [("cause", verdict.cause), ("", verdict.hint)]
    rows.append(("in", verdict.during or ""))
    rows += _pending_rows(verdict)
    tail = _tail_with_callstack(details)
    if tail:
        rows.append(("last lines", tail[0]))
        rows += [("\0", line) for line in tail[1:]]
    if verdict.victims:
        of = name_of(verdict.culprit) if verdict.culprit is not None else "another rank"
        rows.append(("victims", f"{names_of(verdict.victims)}: failed only because {of} was lost"))
    rows += _listed("also failed", verdict.also_failed)
    rows += _listed("lost", verdict.lost)
    if verdict.ended:
        rows.append(("ended", f"{names_of(verdict.ended)}: by the launcher"))
    if verdict.finished:
        rows.append(("finished", f"{names_of(verdict.finished)}: exit code 0"))
    rows.append(("restarts", details.restarts))
    rows += [("log", details.log), ("run again", details.rerun)]
    return _box(verdict.title, rows, details.unicode)


def _listed(label: str, lines: Sequence[str]) -> list[tuple[str, str]]:
    return [
        (label if index == 0 else "", line) for index, line in enumerate(lines[:_PENDING_SHOWN])
    ]


def _pending_rows(verdict: Verdict) -> list[tuple[str, str]]:
    rows = []
    for index, entry in enumerate(verdict.pending[:_PENDING_SHOWN]):
        missing = f"  (missing: {names_of(entry.missing_ranks)})" if entry.missing_ranks else ""
        rows.append(("waiting" if index == 0 else "", f"{entry}{missing}"))
    more = len(verdict.pending) - _PENDING_SHOWN
    if more > 0:
        rows.append(("", f"and {more} more"))
    return rows


def _tail_with_callstack(details: BlockDetails) -> list[str]:
    """Returns the last lines of the output, and the traceback if they do not hold it."""
    callstack = clean_tail(details.callstack)
    tail = list(details.tail)
    if callstack and callstack[-1] not in tail:
        tail += callstack
    return tail


def _box(title: str, rows: Sequence[tuple[str, str]], unicode: bool) -> str:
    corner, side, foot, rule = "╭│╰─" if unicode else "+|+-"
    head = f"{corner}{rule} ciranda: {title} "
    lines = [head + rule * max(0, _RULE_WIDTH - len(head))]
    width = max(len(label) for label, _ in rows)
    for label, said in rows:
        text = _CONTROLS.sub("", _ESCAPES.sub("", said))  # text of a rank or of another host
        if text or label == "\0":  # \0: a further line of the output, may be empty
            lines.append(f"{side} {label.strip(chr(0)):<{width}}  {text}".rstrip())
    lines.append(foot + rule * (_RULE_WIDTH - 1))
    return "\n".join(lines)
