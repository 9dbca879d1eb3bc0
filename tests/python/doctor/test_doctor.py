"""`ciranda doctor` on this host, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ciranda.doctor.host_checks import HOST_CHECKS
from ciranda.doctor.lines import CHECKS

DOCTOR = [sys.executable, "-m", "ciranda", "doctor"]
LIMIT_S = 100.0


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DOCTOR, *arguments], capture_output=True, text=True, timeout=LIMIT_S, cwd=cwd
    )


def test_this_host_is_looked_at_and_reduces(tmp_path):
    done = run("--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    failed = [each for each in found["lines"] if each["status"] == "fail"]
    assert (failed, done.returncode) == ([], 0), done.stderr
    looked_at = [name for name, _, _ in HOST_CHECKS]
    assert [each["check"] for each in found["lines"]] == [
        each.name for each in CHECKS if each.name in looked_at or each.group == "all-reduce"
    ]
    assert all(each["mend"] for each in found["lines"] if each["status"] == "warn")
    assert found["figures"]["allreduce"]["ranks"] >= 2
    assert sum(found["summary"].values()) == len(found["lines"])
    assert list(tmp_path.iterdir()) == []  # it leaves no file


def test_help_and_the_module_do_not_wait_for_torch():
    code = "import sys, ciranda.doctor.cli, ciranda.doctor.probe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=LIMIT_S).returncode == 0
    assert "--port-range" in run("--help").stdout


def test_a_wrong_option_is_one_sentence():
    done = run("--port-range", "9-1")
    assert done.returncode == 2
    assert done.stderr.startswith("ciranda doctor: --port-range 9-1")
    assert len(done.stderr.splitlines()) == 1
