"""A warm program finds what one of a new interpreter finds, and ends alike: breaks when a test that
starts warm proves nothing about users' programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm
from launch.conftest import ignoring

LOOKS_ROUND = """
import json, os, signal, sys
with open("/proc/self/environ") as file:
    seen = sorted(filter(None, file.read().split("\\0")))
found = {
    "argv": sys.argv, "name": __name__, "file": __file__, "first folder": sys.path[0],
    "environment": dict(os.environ), "seen from outside": seen, "folder": os.getcwd(),
    "input": sys.stdin.read(), "descriptors": sorted(os.listdir("/proc/self/fd")),
    "signals": [str(signal.getsignal(each)) for each in sorted(signal.valid_signals())],
    "comm": open("/proc/self/comm").read(), "defined": sorted({*globals()} - {"file", "seen"}),
    "streams": [[each.encoding, each.errors, each.line_buffering, each.write_through]
                for each in (sys.stdout, sys.stderr)],
}
print(json.dumps(found))
"""

ENDS = {
    "returns": "print('said')",
    "exit code": "import sys; print('said'); sys.exit(3)",
    "sentence": "import sys; sys.exit('it is over')",
    "exception": "def fail():\n    return 1 / 0\nfail()",
    "import": "import no_such_module",
    "syntax": "print(",
    "Ctrl-C": "raise KeyboardInterrupt",
    "at exit": "import atexit; atexit.register(print, 'last'); print('first'); 1 / 0",
    "thread": "import threading, time\n"
    "threading.Timer(0.2, lambda: print('from a thread')).start()",
    "subprocess": "import subprocess, sys\n"
    "if len(sys.argv) == 1:\n"
    "    command = [sys.executable, '-u', __file__, 'child']\n"
    "    print(subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))\n"
    "else:\n"
    "    print(sys.argv[1:], file=sys.stderr); raise SystemExit(5)",
    "killed": "import os; print('said'); os.kill(os.getpid(), 9)",
}


def both(
    folder: Path, text: str, *arguments: str, stdin: str = "", **env: str
) -> list[subprocess.CompletedProcess[str]]:
    (folder / "program.py").write_text(text)
    command = ["program.py", *arguments]
    locale = {name: text for name, text in os.environ.items() if name[:3] in ("LAN", "LC_")}
    environment = {"PATH": "/bin", **locale, **env}
    return [
        warm.run(command, env=environment, cwd=folder, stdin=stdin),
        subprocess.run(
            [sys.executable, *command],
            env=environment,
            cwd=folder,
            input=stdin,
            capture_output=True,
            text=True,
            preexec_fn=ignoring(),  # as a warm one, whoever started the tests
        ),
    ]


@pytest.mark.parametrize("env", [{}, {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}])
def test_it_finds_the_same_round_itself(tmp_path: Path, env: dict[str, str]) -> None:
    done = both(tmp_path, LOOKS_ROUND, "--lr", "3", stdin="given", **env)
    warm_found, found = (json.loads(each.stdout) for each in done)
    assert warm_found == found


@pytest.mark.parametrize("env", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("how", ENDS)
def test_it_ends_alike(tmp_path: Path, how: str, env: dict[str, str]) -> None:
    warm_done, done = both(tmp_path, ENDS[how], **env)
    assert warm_done.returncode == done.returncode
    assert warm_done.stdout == done.stdout
    assert warm_done.stderr == done.stderr
