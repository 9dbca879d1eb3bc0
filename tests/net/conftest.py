"""Lets test modules import `net`, and gives them `make_network`."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = str(Path(__file__).resolve().parents[1])
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)

from net.fixtures import make_network  # noqa: E402, F401 - a fixture is found by its name
