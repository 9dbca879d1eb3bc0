"""A stub that no longer tells what the compiled module offers misleads every editor and mypy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

COMMITTED = Path(__file__).parents[3] / "python" / "ciranda" / "_C.pyi"


def test_the_stub_tells_what_the_module_offers(tmp_path: Path) -> None:
    pytest.importorskip("pybind11_stubgen", reason="pybind11-stubgen is not installed")
    subprocess.run(
        [sys.executable, "-m", "pybind11_stubgen", "ciranda._C", "-o", str(tmp_path)],
        check=True,
        capture_output=True,
    )
    fresh = (tmp_path / "ciranda" / "_C.pyi").read_text(encoding="utf-8")
    assert _essence(fresh) == _essence(COMMITTED.read_text(encoding="utf-8")), (
        "python/ciranda/_C.pyi is out of date: run "
        "`python -m pybind11_stubgen ciranda._C -o build/stubs` and copy the result"
    )


def _essence(stub: str) -> str:
    return re.sub(r"\s+", " ", stub).strip()
