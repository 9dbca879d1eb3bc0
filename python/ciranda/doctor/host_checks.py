"""All checks of one host, from its facts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ciranda.doctor import machine_checks, network_checks, software_checks
from ciranda.doctor.lines import Line, Verdict, line, skip
from ciranda.doctor.setting import Facts, Setting

Judge = Callable[[Facts, Setting], Verdict]

# The name of each check, the facts that it needs, and its judge.
HOST_CHECKS: Sequence[tuple[str, Sequence[str], Judge]] = (
    ("cores", ["cores"], machine_checks.cores),
    ("load", ["load", "cores"], machine_checks.load),
    ("threads", ["threads", "cores"], machine_checks.threads),
    ("memory", ["memory"], machine_checks.memory),
    ("shared_memory", ["memfd"], machine_checks.shared_memory),
    ("dev_shm", ["dev_shm"], machine_checks.dev_shm),
    ("open_files", ["limits"], machine_checks.open_files),
    ("processes", ["limits"], machine_checks.processes),
    ("address_space", ["limits"], machine_checks.address_space),
    ("file_size", ["limits"], machine_checks.file_size),
    ("locked_memory", ["limits"], machine_checks.locked_memory),
    ("job_folder", ["job_folder"], machine_checks.job_folder),
    ("log_folder", ["log_folder"], machine_checks.log_folder),
    ("clock", ["clock"], machine_checks.clock),
    ("interfaces", ["interfaces"], network_checks.interfaces),
    ("hostname", ["hostname"], network_checks.hostname),
    ("ports", ["ports"], network_checks.ports),
    ("python", ["python"], software_checks.python),
    ("torch", ["torch", "ciranda"], software_checks.torch),
    ("ciranda", ["torch", "ciranda"], software_checks.ciranda),
    ("openmp", ["torch"], software_checks.openmp),
    ("gloo", ["torch"], software_checks.gloo),
    ("driver", ["driver", "torch"], software_checks.driver),
    ("nccl", ["torch"], software_checks.nccl),
)


def host_lines(facts: Facts, setting: Setting, host: str = "") -> list[Line]:
    """Returns the lines of all checks of this host; a check without its facts is skipped."""
    lines = []
    for name, needed, judge in HOST_CHECKS:
        why = next((_why_not(facts, each) for each in needed if _why_not(facts, each)), None)
        verdict = judge(facts, setting) if why is None else skip(name, why)
        lines.append(line(name, host, verdict))
    return lines


def _why_not(facts: Facts, name: str) -> str | None:
    fact = facts.get(name)
    if fact is None:
        return "this host did not say"
    why: str | None = fact.get("why_not")
    return why
