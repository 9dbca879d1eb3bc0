"""A stub that no longer tells what the compiled module offers misleads every editor and mypy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "python" / "ciranda"


@pytest.mark.parametrize("name", ["_C", "_member"])
def test_the_stub_tells_what_the_module_offers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pybind11_stubgen", reason="pybind11-stubgen is not installed")
    subprocess.run(
        [sys.executable, "-m", "pybind11_stubgen", f"ciranda.{name}", "-o", str(tmp_path)],
        check=True,
        capture_output=True,
    )
    fresh = (tmp_path / "ciranda" / f"{name}.pyi").read_text(encoding="utf-8")
    assert _essence(fresh) == _essence((PACKAGE / f"{name}.pyi").read_text(encoding="utf-8")), (
        f"python/ciranda/{name}.pyi is out of date: run "
        f"`python -m pybind11_stubgen ciranda.{name} -o build/stubs` and copy the result"
    )


def _essence(stub: str) -> str:
    return re.sub(r"\s+", " ", stub).strip()
