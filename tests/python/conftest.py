"""Lets every test module say `from ranks import run_ranks`, and import ciranda from a checkout."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent

if str(_HERE) not in sys.path:
    sys.path.insert(0, str(_HERE))
if importlib.util.find_spec("ciranda") is None:  # neither installed nor on PYTHONPATH
    sys.path.insert(0, str(_HERE.parents[1] / "python"))
