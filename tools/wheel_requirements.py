"""What an installed ciranda needs: for pyproject.toml and setup.py.

A build fits one minor version of torch, which pip must know: it would install another one, and
import would refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_state = "wheel"


def requirements() -> list[str]:
    torch = "torch>=2.11"  # a source distribution fits any: it is compiled later
    if _state != "sdist":
        try:
            major, minor = version("torch").split(".")[:2]
            torch = f"torch=={major}.{minor}.*"
        except PackageNotFoundError:
            pass  # core alone is built
    return [torch, "click>=8.1"]


# The hooks of [[tool.dynamic-metadata]].


def build_state(state: str) -> None:
    global _state
    _state = state


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    return {"dependencies": requirements()}


def dynamic_wheel(settings: Mapping[str, Any]) -> dict[str, bool]:
    return {"dependencies": True}
