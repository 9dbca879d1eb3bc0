"""Gives the test module hosts."""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "hosts"), str(_HERE.parents[1])]
from net.fixtures import make_network  # noqa: E402, F401 - a fixture is found by its name
