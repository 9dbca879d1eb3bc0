"""The page for C++ programs: each name of Python's API is in the headers, or in the table of what
only Python has. Breaks when one of the APIs grows and the page does not follow."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/libtorch.md").read_text()
HEADERS = "".join(
    re.sub(r"//.*", "", path.read_text()) for path in (ROOT / "csrc/include/ciranda").glob("*.h")
)
# The page names these by their kind.
FAMILIES = r"grouped_\w+|sparse_\w+|\w+_async_?|\w+_(built|enabled|supported)"
# Other names for what both have, and arguments of it.
ALIKE = {"HorovodInternalError", "Average", "Sum", "Min", "Max", "Product", "Adasum"}
ALIKE |= {"ps", "Mode"}
PARTS_OF_A_ROW = {"Compressor", "reduce_", "Task", "Future", "LbfgsResult", "is_evaluator"}
OF_A_COORDINATOR = {"task", "schedule", "join", "done", "run", "per_worker", "is_coordinator"}


def names(module: str) -> set[str]:
    """`__all__` of a module, without an import of torch."""
    tree = ast.parse((ROOT / "python/ciranda/torch" / module).read_text())
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return set(ast.literal_eval(value))


def only_python_has() -> list[str]:
    """The second column of the table."""
    table = PAGE.split("## What only Python has")[1]
    return [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("module", ["__init__.py", "ps/__init__.py"])
def test_each_name_of_python_is_in_a_header_or_on_the_page(module: str) -> None:
    known = ALIKE | PARTS_OF_A_ROW | (OF_A_COORDINATOR if module.startswith("ps") else set())
    listed = set(re.findall(r"\w+", " ".join(only_python_has())))
    missing = [
        name
        for name in sorted(names(module) - known)
        if not re.search(rf"\b{name}\b", HEADERS)
        and not re.fullmatch(FAMILIES, name)
        and name not in listed
    ]
    assert missing == []


def test_no_function_of_the_headers_is_said_to_be_absent() -> None:
    told = set(re.findall(r"`(\w+)(?:\(\))?`", " ".join(only_python_has())))
    declared = set(re.findall(r"^\S.*?\b(\w+)\(", HEADERS, re.M))
    assert told & declared == {"stats"}  # ps::stats(): the row says which one


def test_each_option_of_the_headers_is_on_the_page() -> None:
    body = HEADERS.split("struct DistributedOptions {")[1].split("};")[0]
    options = set(re.findall(r"(\w+) = ", body))
    assert options and options <= set(re.findall(r"`\.(\w+)", PAGE))
