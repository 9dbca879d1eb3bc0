"""The main job's file as a module, without making examples/ a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for idx_files.py
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "fashion_mnist.py"


@pytest.fixture(scope="session")
def example_file() -> Path:
    return EXAMPLE


@pytest.fixture(scope="session")
def fashion_mnist() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fashion_mnist_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
