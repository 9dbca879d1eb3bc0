"""Lets the test module import its neighbours."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
