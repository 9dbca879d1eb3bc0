"""Lets the test module here say `from one_node_slurm import OneNodeSlurm`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
