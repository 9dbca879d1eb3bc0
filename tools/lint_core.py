"""clang-tidy on core: on each source whose text, headers, options or checks have changed since it
was last found clean. What was clean is kept by content, for every checkout of this user.

    python tools/lint_core.py [BUILD_FOLDER [CHECKS]]

BUILD_FOLDER is one that CMake has configured for clang; CHECKS come on top of those of .clang-tidy.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLEAN = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ciranda" / "clang-tidy"
_WITH_VALUE = {"-o", "-MF", "-MT", "-MQ"}
_ALONE = {"-c", "-MD", "-MMD"}


def output_of(*command: str, cwd: Path = ROOT) -> str:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


def options_of(entry: dict[str, str]) -> list[str]:
    """The compiler and its options, without what says where the results go."""
    words = shlex.split(entry["command"])
    words = words[1:] if Path(words[0]).name == "ccache" else words
    kept, skip = [], False
    for word in words:
        if not skip and word not in _WITH_VALUE and word not in _ALONE:
            kept.append(word)
        skip = not skip and word in _WITH_VALUE
    return kept


@cache
def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def tool_and_checks(more: str) -> list[str]:
    return [output_of("clang-tidy", "--version"), (ROOT / ".clang-tidy").read_text(), more]


def key_of(entry: dict[str, str], more: str) -> str:
    folder, options = Path(entry["directory"]), options_of(entry)
    rule = output_of(*options, "-MM", cwd=folder).replace("\\\n", " ")
    parts = [*tool_and_checks(more), *(word.replace(str(ROOT), ".") for word in options)]
    for name in rule.partition(":")[2].split():
        path = (folder / name).resolve()
        parts.append(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
        parts.append(digest(path))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def lint(entry: dict[str, str], build: Path, more: str) -> tuple[str, str | None]:
    """The source, and what is wrong with it; None: it was known to be clean."""
    try:
        mark = CLEAN / key_of(entry, more)
    except subprocess.CalledProcessError as error:
        return entry["file"], error.stderr
    if mark.exists():
        return entry["file"], None
    command = ["clang-tidy", "--quiet", f"-p={build}", f"--checks={more}", entry["file"]]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode == 0:
        CLEAN.mkdir(parents=True, exist_ok=True)
        mark.touch()
    return entry["file"], "" if done.returncode == 0 else done.stdout + done.stderr


def main(build: Path, more: str) -> int:
    entries = [
        entry
        for entry in json.loads((build / "compile_commands.json").read_text())
        if Path(entry["file"]).is_relative_to(ROOT / "csrc/core")
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda entry: lint(entry, build, more), entries))
    problems = {file: said for file, said in results if said}
    for said in problems.values():
        print(said)
    looked_at = sum(said is not None for _, said in results)
    print(f"{len(entries)} sources, {looked_at} of them new or changed, {len(problems)} not clean")
    return 1 if problems or not entries else 0


if __name__ == "__main__":
    folder, more = (*sys.argv[1:], *("build/clang", "")[len(sys.argv) - 1 :])
    sys.exit(main(ROOT / folder, more))
