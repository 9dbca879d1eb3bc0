"""The doctor's all-reduce: `ciranda run` as a user would start it, and the reports of its ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ciranda.doctor.facts import module_command
from ciranda.launch.plan.hosts import Host
from ciranda.launch.run import process_tree

LARGE_BYTES = 64 * 1024 * 1024
LIMIT_S = 60.0
_GRACE_S = 15.0  # time for the launcher to end its ranks
_SAID_LINES = 30


def run_job(
    hosts: Sequence[Host], options: Sequence[str], large_bytes: int = LARGE_BYTES
) -> dict[str, Any]:
    """Returns {"ranks": […]}, or {"exit_code": …, "said": the launcher's text}. Blocks."""
    size = sum(host.slots for host in hosts)
    placed = ["-np", str(size), "-H", ",".join(str(host) for host in hosts)]
    # The logs of a failed job would otherwise stay.
    with tempfile.TemporaryDirectory(prefix="ciranda-doctor-", ignore_cleanup_errors=True) as logs:
        argv = [
            *module_command(sys.executable, "ciranda.doctor.job"),
            *(str(os.getpid()), *placed, *options),
            *(f"--timeout={LIMIT_S:g}", f"--log-dir={logs}", "--no-color"),
            *("-m", "ciranda.doctor.worker", str(large_bytes)),
        ]
        code, output, errors = _run(argv)
    if code is None:
        return {"exit_code": None, "said": f"no end after {LIMIT_S + _GRACE_S:g} s"}
    reports = list(_reports(output.splitlines()))
    if code != 0 or len(reports) != size:
        return {"exit_code": code, "said": "\n".join(errors.splitlines()[-_SAID_LINES:])}
    return {"ranks": sorted(reports, key=lambda each: int(each["rank"]))}


def _run(argv: Sequence[str]) -> tuple[int | None, str, str]:
    """Returns exit code, stdout and stderr; the code is None if it did not end."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(os.environ),
        cwd="/",  # exists on all hosts, and has no modules of the user
        text=True,
        errors="replace",
    ) as process:
        try:
            output, errors = process.communicate(timeout=LIMIT_S + _GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its supervisor ends the ranks
            return None, "", ""
        except BaseException:
            process.kill()
            raise
        return process.returncode, output, errors


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Makes PYTHONPATH absolute, because the job starts in another folder."""
    paths = [part for part in inherited.get("PYTHONPATH", "").split(os.pathsep) if part]
    absolute = os.pathsep.join(os.path.abspath(part) for part in paths)
    return {**inherited, **({"PYTHONPATH": absolute} if paths else {})}


def _reports(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    """Yields the JSON of lines such as `[0] {…}`."""
    for line in lines:
        _, _, text = line.partition("] ")
        if text.startswith("{"):
            yield json.loads(text)


def main() -> None:
    """Runs the launcher, which dies with the doctor that started it."""
    from ciranda.launch.cli.run import run_command

    process_tree.die_with_parent(int(sys.argv[1]))
    run_command.main(sys.argv[2:], prog_name="ciranda run")
