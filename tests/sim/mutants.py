"""Planted mistakes: each must be found by the tests that stand for its part of core.

A mutant replaces one piece of source text that occurs exactly once in core. Its file is compiled
again and linked with the objects of the tests and the rest of core as the release build has them.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from .suites import Mutant, Suite

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "csrc/core"
BUILD = ROOT / "build/release"
_COMPILER = os.environ.get("CXX", "g++")
_CCACHE = ["ccache"] if shutil.which("ccache") else []
_LIBRARIES = ("-lssl", "-lcrypto", "-lgtest", "-lgtest_main", "-lpthread")
SCHEDULES = 10_000
RUN_TIMEOUT_S = 60  # a whole run takes 4 s of CPU time


def build() -> None:
    """Core and its tests without a mistake, which `make test` has built before."""
    _call(["cmake", "--preset", "release"])
    _call(["cmake", "--build", "--preset", "release"])


def link(folder: Path, suite: Suite, mutant: Mutant | None = None) -> Path:
    """A program of the suite's tests, in `folder`; what it needs for that is compiled there."""
    folder.mkdir()
    # Before core's archive, from which the file without the mistake is then not taken.
    objects = [] if mutant is None else [_compile(folder, mutant)]
    for test in suite.tests:
        target = BUILD / "tests/CMakeFiles" / f"{Path(test).parts[0]}_tests.dir"
        found = sorted(target.glob(f"cpp/{test}.o"))
        # A test that was renamed leaves its object behind.
        objects += [
            o for o in found if (ROOT / "tests" / o.relative_to(target).with_suffix("")).is_file()
        ]
    program = folder / "tests"
    libraries = (BUILD / "libciranda_core.a", *_LIBRARIES)
    _call([_COMPILER, *map(str, objects), *map(str, libraries), "-o", str(program)])
    return program


@functools.cache
def _without_blanks(text: str) -> tuple[list[int], str]:
    offsets = [at for at, character in enumerate(text) if not character.isspace()]
    return offsets, "".join(text[at] for at in offsets)


def plant(mutant: Mutant, sources: dict[Path, str]) -> tuple[Path, str]:
    """The file that the mutant is in, and its text with the mistake; LookupError where the text
    that it replaces is not there once. Blanks do not count, so that formatting changes nothing."""
    old = "".join(mutant.old.split())
    found = []
    for path, text in sources.items():
        offsets, dense = _without_blanks(text)
        at = dense.find(old)
        while at >= 0:
            found.append((path, offsets[at], offsets[at + len(old) - 1] + 1))
            at = dense.find(old, at + 1)
    if len(found) != 1:
        where = ", ".join(path.name for path, _, _ in found) or "no file"
        raise LookupError(f"{mutant.name}: its text has to occur once in core, and is in {where}")
    path, begin, end = found[0]
    text = sources[path]
    return path, text[:begin] + mutant.new + text[end:]


def sources_of_core() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(CORE.rglob("*.cc"))}


def _compile(folder: Path, mutant: Mutant) -> Path:
    path, text = plant(mutant, sources_of_core())
    # Where ccache finds it again.
    source = BUILD / "mutants" / mutant.name / path.name
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(text)
    result = folder / source.with_suffix(".o").name
    includes = [f"-I{CORE.parent}", f"-I{CORE.parent / 'include'}"]
    _call(
        [*_CCACHE, _COMPILER, "-std=c++20", "-O1", *includes, "-c", str(source), "-o", str(result)]
    )
    return result


def _call(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command}\n{done.stdout}\n{done.stderr}")


def run(
    program: Path, suite: Suite, timeout_s: float = RUN_TIMEOUT_S
) -> subprocess.CompletedProcess[str] | None:
    """Runs the suite's tests; None if they do not end."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("CIRANDA_SIM_")
    }
    environment["CIRANDA_SIM_SCHEDULES"] = str(SCHEDULES)
    try:
        return subprocess.run(
            [str(program), f"--gtest_filter={suite.filter}", "--gtest_fail_fast"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return None


def what_found_it(result: subprocess.CompletedProcess[str] | None) -> str:
    """The assertion that failed, of a test or of core itself; "" if none did. A time-out is none:
    it may be the machine's."""
    if result is None:
        return ""
    for line in (*result.stdout.splitlines(), *result.stderr.splitlines()):
        if ": Failure" in line or "broken invariant" in line:
            return line
    return ""
