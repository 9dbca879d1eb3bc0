"""clang-tidy on core: on each source whose text, headers, options or checks have changed since it
was last found clean. What was clean is kept by content, for every checkout of this user.

    python tools/lint_core.py [BUILD_FOLDER [CHECKS]]

BUILD_FOLDER is one that CMake has configured for clang; CHECKS come on top of those of .clang-tidy.

Reading system headers takes most of the time, so the sources of a folder are linted as one file
that includes them. Names in their anonymous namespaces must differ, as the sanitizers' builds
demand as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CLEAN = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ciranda" / "clang-tidy"
_WITH_VALUE = {"-o", "-MF", "-MT", "-MQ", "-c"}
_ALONE = {"-MD", "-MMD"}
# clang-tidy looks for unused ones only in the file that it is given.
_USING = re.compile(r"^\s*(using [\w:]+::\w+;|namespace \w+ =)", re.MULTILINE)

Entry = dict[str, str]
Batch = list[tuple[Entry, Path]]  # each with the file that exists once it is clean


def output_of(*command: str, cwd: Path = ROOT) -> str:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


def options_of(entry: Entry) -> list[str]:
    """The compiler and its options, without the source and what says where the results go."""
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


def key_of(entry: Entry, more: str) -> str:
    folder, options = Path(entry["directory"]), options_of(entry)
    rule = output_of(*options, "-MM", entry["file"], cwd=folder).replace("\\\n", " ")
    parts = [*tool_and_checks(more), *(word.replace(str(ROOT), ".") for word in options)]
    for name in rule.partition(":")[2].split():
        path = (folder / name).resolve()
        parts.append(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
        parts.append(digest(path))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def marked(entry: Entry, more: str) -> tuple[Entry, Path] | str:
    """The entry and the file that exists once it is clean, or why it cannot be read."""
    try:
        return entry, CLEAN / key_of(entry, more)
    except subprocess.CalledProcessError as error:
        return str(error.stderr)


def batches_of(sources: Batch) -> list[Batch]:
    """Sources of one folder with the same options; the largest batches first."""
    batches: dict[tuple[str, ...], Batch] = {}
    for entry, mark in sources:
        path = Path(entry["file"])
        together = path if _USING.search(path.read_text()) else path.parent
        batches.setdefault((str(together), *options_of(entry)), []).append((entry, mark))
    return sorted(batches.values(), key=len, reverse=True)


def lint(batch: Batch, build: Path, more: str) -> str:
    """What is wrong with the sources; none of them is marked as clean then."""
    source = Path(batch[0][0]["file"])
    if len(batch) > 1:
        allowed = "// NOLINT(bugprone-suspicious-include)"
        name = "_".join(source.relative_to(ROOT).parts)
        source = build / "lint" / name
        source.parent.mkdir(exist_ok=True)
        source.write_text("".join(f'#include "{e["file"]}"  {allowed}\n' for e, _ in batch))
    options = options_of(batch[0][0])[1:]
    command = ["clang-tidy", "--quiet", f"--checks={more}", str(source), "--", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        return done.stdout + done.stderr
    for _, mark in batch:
        mark.touch()
    return ""


def main(build: Path, more: str) -> int:
    entries = [
        entry
        for entry in json.loads((build / "compile_commands.json").read_text())
        if Path(entry["file"]).is_relative_to(ROOT / "csrc/core")
    ]
    CLEAN.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        looked_at = list(pool.map(lambda entry: marked(entry, more), entries))
        problems = [found for found in looked_at if isinstance(found, str)]
        known = [found for found in looked_at if not isinstance(found, str)]
        new = [(entry, mark) for entry, mark in known if not mark.exists()]
        batches = batches_of(new)
        problems += filter(None, pool.map(lambda batch: lint(batch, build, more), batches))
    for said in problems:
        print(said)
    print(f"{len(entries)} sources, {len(new)} of them new or changed, in {len(batches)} batches")
    return 1 if problems or not entries else 0


if __name__ == "__main__":
    folder, more = (*sys.argv[1:], *("build/clang", "")[len(sys.argv) - 1 :])
    sys.exit(main(ROOT / folder, more))
