"""Fixtures of this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # tests/
sys.path.insert(0, str(Path(__file__).parent))
from net.fixtures import make_network  # noqa: F401 - a fixture is found by its name
