"""The doctor's output: a line for each check on each host, or for all hosts together. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

PAGE = "docs/doctor.md"


class Status(str, enum.Enum):
    OK = "ok"
    SKIP = "skip"  # the check could not look at it
    WARN = "warn"  # a job may run, but slower, or not everywhere
    FAIL = "fail"  # a job cannot run


@dataclass(frozen=True)
class Check:
    name: str  # also its anchor in PAGE
    group: str
    by_hand: str  # the command that shows the same


# All checks, in the order of printing.
CHECKS = (
    Check("cores", "machine", "nproc; cat /sys/fs/cgroup/cpu.max"),
    Check("load", "machine", "uptime"),
    Check("threads", "machine", "env | grep NUM_THREADS"),
    Check("memory", "machine", "free -m"),
    Check("shared_memory", "machine", "cat /proc/sys/vm/memfd_noexec"),
    Check("dev_shm", "machine", "df -h /dev/shm"),
    Check("open_files", "machine", "ulimit -n"),
    Check("processes", "machine", "ulimit -u; cat /sys/fs/cgroup/pids.max"),
    Check("address_space", "machine", "ulimit -v"),
    Check("file_size", "machine", "ulimit -f"),
    Check("locked_memory", "machine", "ulimit -l"),
    Check("job_folder", "machine", "df -h /tmp $XDG_RUNTIME_DIR"),
    Check("log_folder", "machine", "df -h $TMPDIR /tmp"),
    Check("clock", "machine", "timedatectl"),
    Check("interfaces", "network", "ip -brief address"),
    Check("hostname", "network", "getent ahosts $(hostname)"),
    Check("ports", "network", "sysctl net.ipv4.ip_local_port_range; ss -ltn"),
    Check("python", "software", "python --version"),
    Check("torch", "software", "python -c 'import torch'"),
    Check("ciranda", "software", "ciranda run --check"),
    Check("openmp", "software", "find / -name 'libgomp*'"),
    Check("gloo", "software", "ciranda run --check"),
    Check("driver", "software", "nvidia-smi"),
    Check("nccl", "software", "ciranda run --check"),
    Check("ssh", "between hosts", "ssh -v HOST true"),
    Check("agent", "between hosts", "ssh HOST python -m ciranda --version"),
    Check("same_software", "between hosts", "ssh HOST pip list"),
    Check("same_folder", "between hosts", "ssh HOST ls $PWD"),
    Check("clock_offset", "between hosts", "ssh HOST date +%s.%N; date +%s.%N"),
    Check("names", "between hosts", "getent ahosts HOST"),
    Check("networks", "between hosts", "ip route get ADDRESS"),
    Check("tcp", "between hosts", "nc -vz HOST PORT"),
    Check("allreduce", "all-reduce", "ciranda run -np 2 -m ciranda.doctor.worker"),
    Check("latency", "all-reduce", "ciranda run -np 2 -m ciranda.doctor.worker"),
    Check("bandwidth", "all-reduce", "ciranda run -np 2 -m ciranda.doctor.worker"),
)
_BY_NAME = {check.name: check for check in CHECKS}
GROUPS = tuple(dict.fromkeys(check.group for check in CHECKS))


@dataclass(frozen=True)
class Verdict:
    """The result of one check. `mend` is one sentence with the remedy, or empty."""

    status: Status
    found: str
    mend: str = ""


@dataclass(frozen=True)
class Line:
    check: Check
    host: str  # its subject: "node1", "node0 -> node1", or "" for all hosts together
    verdict: Verdict

    @property
    def see(self) -> str:
        return f"{PAGE}#{self.check.name}"

    def as_json(self) -> dict[str, Any]:
        return {
            "check": self.check.name,
            "host": self.host or None,
            "status": self.verdict.status.value,
            "found": self.verdict.found,
            "mend": self.verdict.mend or None,
            "see": self.see,
        }


def line(name: str, host: str, verdict: Verdict) -> Line:
    return Line(_BY_NAME[name], host, verdict)


def ok(found: str) -> Verdict:
    return Verdict(Status.OK, found)


def warn(found: str, mend: str) -> Verdict:
    return Verdict(Status.WARN, found, mend)


def fail(found: str, mend: str) -> Verdict:
    return Verdict(Status.FAIL, found, mend)


def skip(name: str, why: str) -> Verdict:
    """Returns the verdict of a check that could not look."""
    by_hand = _BY_NAME[name].by_hand
    return Verdict(Status.SKIP, f"not seen: {why}", f"Look by hand: {by_hand}")


def in_order(lines: Iterable[Line]) -> list[Line]:
    """Returns the lines in the order of printing; within a check hosts keep their order."""
    order = {check.name: index for index, check in enumerate(CHECKS)}
    return sorted(lines, key=lambda each: order[each.check.name])


def count_of(lines: Iterable[Line], status: Status) -> int:
    return sum(each.verdict.status is status for each in lines)


def table(lines: Sequence[Line], host_count: int) -> list[str]:
    """Formats the lines for a console; hosts with the same status and remedy share a row."""
    text: list[str] = []
    for group in GROUPS:
        of_group = [each for each in in_order(lines) if each.check.group == group]
        if of_group:
            text += ["", group]
        for check in dict.fromkeys(each.check for each in of_group):
            of_check = [each for each in of_group if each.check is check]
            for said in dict.fromkeys(
                (each.verdict.status, each.verdict.mend) for each in of_check
            ):
                alike = [e for e in of_check if (e.verdict.status, e.verdict.mend) == said]
                text += _rows(check, said, alike, host_count)
    return text


def _said(of: Line) -> tuple[Status, str]:
    return of.verdict.status, of.verdict.mend


_FOUND_MAX = 3  # different findings shown in a row of status ok


def _rows(
    check: Check, said: tuple[Status, str], alike: Sequence[Line], host_count: int
) -> list[str]:
    status, mend = said
    found: list[str] = []
    for what in dict.fromkeys(each.verdict.found for each in alike):
        hosts = [each.host for each in alike if each.verdict.found == what and each.host]
        everybody = len(hosts) == host_count
        found.append(f"{', '.join(hosts)}: {what}" if hosts and not everybody else what)
    if status is Status.OK and len(found) > _FOUND_MAX:
        found[_FOUND_MAX:] = [f"and {len(found) - _FOUND_MAX} more that are well"]
    first = f"  {status.value:<5} {check.name:<14} {found[0]}"
    rest = [f"  {'':<5} {'':<14} {each}" for each in found[1:]]
    mended = [f"  {'':<5} {'':<14} -> {mend} ({alike[0].see})"] if mend else []
    return [first, *rest, *mended]


def summary(lines: Sequence[Line]) -> str:
    failed, warned = count_of(lines, Status.FAIL), count_of(lines, Status.WARN)
    counts = f"{failed} failed, {warned} warned, {count_of(lines, Status.OK)} ok"
    if failed:
        return f"{counts}: mend the failed lines first, from the top"
    return f"{counts}: a job can run" + (", though not at its best" if warned else "")
