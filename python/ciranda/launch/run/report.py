"""Collects the evidence of a failed job from its files and words the failure block."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ciranda.launch.plan.environment import JobPaths
from ciranda.launch.plan.launch_plan import LaunchPlan
from ciranda.launch.run.ending import Reason
from ciranda.launch.run.failure import (
    BlockDetails,
    ErrorReport,
    Evidence,
    LostHost,
    RankEnd,
    Verdict,
    cause_of,
    clean_tail,
    judge,
    parse_error_file,
    render,
)
from ciranda.launch.run.output_files import FOLLOWS

_ERROR_FILE_BYTES_MAX = 1024 * 1024
_TAIL_BYTES = 64 * 1024


def report_failure(
    plan: LaunchPlan,
    ends: Sequence[RankEnd],
    reason: Reason,
    *,
    lost_hosts: Sequence[LostHost],
    timeout_s: float | None,
    rerun: str,
    unicode: bool,
    restarted: int = 0,
) -> tuple[str, int]:
    """Returns the failure block and the exit code of the job."""
    evidence = _collect(plan, ends, lost_hosts)
    verdict = judge(evidence, reason, timeout_s)
    return _word(plan, evidence, verdict, rerun, unicode, restarted)


def report_lost_supervisor(plan: LaunchPlan, cause: str, *, rerun: str, unicode: bool) -> str:
    verdict = Verdict("the job failed", cause, exit_code=1)
    return _word(plan, Evidence(plan.size, ()), verdict, rerun, unicode)[0]


def report_given_up(
    plan: LaunchPlan, cause: str, lost: Sequence[str], *, rerun: str, unicode: bool
) -> str:
    """Returns the failure block of an elastic job that gives up, and has `lost` these ranks."""
    verdict = Verdict("the job failed", cause, exit_code=1, lost=tuple(lost))
    return _word(plan, Evidence(plan.size, ()), verdict, rerun, unicode)[0]


def words_of_end(paths: JobPaths, end: RankEnd) -> str:
    """Returns why a process has ended, from the files of its number."""
    return cause_of(end, _error_report(paths, end.rank), _tail(paths, end.rank))


def _collect(plan: LaunchPlan, ends: Sequence[RankEnd], lost_hosts: Sequence[LostHost]) -> Evidence:
    reports: dict[int, ErrorReport] = {}
    tails: dict[int, list[str]] = {}
    ours = [each.number for each in plan.processes]
    for rank in ours:
        report = _error_report(plan.paths, rank)
        if report is not None:
            reports[rank] = report
        tails[rank] = _tail(plan.paths, rank)
    others = frozenset(range(plan.size)).difference(ours)
    return Evidence(plan.size, ends, reports, tails, lost_hosts, others)


def _error_report(paths: JobPaths, number: int) -> ErrorReport | None:
    return parse_error_file(_read(paths.error_file(number), _ERROR_FILE_BYTES_MAX))


def _tail(paths: JobPaths, number: int) -> list[str]:
    """Returns the last lines of the last process of this number."""
    text = _read(paths.log_file(number), _TAIL_BYTES, from_end=True)
    _, separator, last = text.rpartition(FOLLOWS)
    return clean_tail(last.partition("\n")[2] if separator else text)


def _word(
    plan: LaunchPlan,
    evidence: Evidence,
    verdict: Verdict,
    rerun: str,
    unicode: bool,
    restarted: int = 0,
) -> tuple[str, int]:
    culprit = verdict.culprit
    paths: JobPaths = plan.paths
    started_here = any(each.number == culprit for each in plan.processes)
    report = None if culprit is None else evidence.reports.get(culprit)
    pids = {end.rank: end.pid for end in evidence.ends}
    details = BlockDetails(
        log=paths.log_file(culprit) if culprit is not None and started_here else paths.log_dir,
        rerun=rerun,
        restarts=f"{restarted} of {plan.restarts}" if plan.restarts else "",
        tail=() if culprit is None else evidence.tails.get(culprit, ()),
        callstack=report.callstack if report is not None else "",
        pid=None if culprit is None else pids.get(culprit),
        host=plan.host_of(culprit) if culprit is not None and started_here else "",
        unicode=unicode,
    )
    return render(verdict, details), verdict.exit_code


def _read(path: str, bytes_max: int, *, from_end: bool = False) -> str:
    try:
        with open(path, "rb") as file:
            if from_end:
                file.seek(max(0, os.fstat(file.fileno()).st_size - bytes_max))
            return file.read(bytes_max).decode("utf-8", "replace")
    except OSError:  # most ranks never write an error file
        return ""
