"""Each promise of Horovod has a test that is there, and each name a promise."""

from __future__ import annotations

import ast
import functools
import re
import sys
from pathlib import Path

import pytest

from ciranda.launch.horovod.horovodrun import FLAGS

TESTS = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(TESTS.parent / "tools")]
import horovod_table  # noqa: E402
from contract import PROMISES, SUBJECTS, Promise  # noqa: E402

SYMBOLS = {name for rows in horovod_table.SYMBOLS.values() for row in rows for name in row.names}
OPTIONS = {flag.names[-1] for flag in FLAGS}
VARIABLES = {name for variable in horovod_table.VARIABLES for name in variable.names}
KNOWN = SYMBOLS | set(horovod_table.OPTIMIZER_METHODS) | OPTIONS | VARIABLES | SUBJECTS


@functools.cache
def named_in(path: Path) -> set[str]:
    """The tests of a Python file, or "Suite.Name" of a file of GoogleTest's."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".cc":
        found = re.findall(r"^(?:TYPED_)?TEST(?:_[FP])?\((\w+),\s*(\w+)\)", text, re.MULTILINE)
        return {f"{suite}.{name}" for suite, name in found}
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return {name for name in names if name.startswith("test_")}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda each: f"{each.of[0]}: {each.says}")
def test_a_promise_is_held_by_tests_that_are_there(promise: Promise) -> None:
    assert promise.tests
    for test in promise.tests:
        path, _, name = test.partition("::")
        assert name in named_in(TESTS / path), test


def test_every_name_option_and_variable_has_a_promise() -> None:
    spoken_of = {name for promise in PROMISES for name in promise.of}
    assert spoken_of == KNOWN


def test_no_promise_is_there_twice() -> None:
    rows = [(promise.of, promise.says) for promise in PROMISES]
    assert len(set(rows)) == len(rows)
