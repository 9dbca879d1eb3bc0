"""Lets every test module say `from ranks import run_ranks`, and import ciranda from a checkout; a
test that leaves a World behind in pytest's own process fails, for the next would find it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent

if str(_HERE) not in sys.path:
    sys.path.insert(0, str(_HERE))
if importlib.util.find_spec("ciranda") is None:  # neither installed nor on PYTHONPATH
    sys.path.insert(0, str(_HERE.parents[1] / "python"))


@pytest.fixture(autouse=True)
def no_world_is_left() -> Iterator[None]:
    yield
    cr = sys.modules.get("ciranda.torch")
    if cr is not None and cr.is_initialized():
        cr.shutdown()
        pytest.fail("the test has called init() in pytest's process, and not shutdown()")


@pytest.fixture
def mlflow_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that MLflow may write to, because it takes ten seconds to make a database."""
    reason = "mlflow-skinny is not installed (requirements-frameworks.txt)"
    pytest.importorskip("mlflow", reason=reason)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return (tmp_path / "mlflow").as_uri()
