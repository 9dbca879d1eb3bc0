"""Lets the test module import its neighbours, and gives it hosts."""

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parents[1] / "hosts"), str(_HERE.parents[2])]
from net.fixtures import make_network  # noqa: E402, F401 - a fixture is found by its name
