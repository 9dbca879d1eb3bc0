"""What a run's processes tell the comparison: lines of their output, whatever carries them.

A launcher puts prefixes in front of lines, so each is found by a word in it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

MARK = "ciranda-compare:"


def say(**what: Any) -> None:
    print(MARK, json.dumps(what), flush=True, file=sys.stdout)


def heard(line: str) -> dict[str, Any] | None:
    """What a line says; None for one that is the program's own."""
    _, mark, text = line.partition(MARK)
    if not mark:
        return None
    try:
        found = json.loads(text)
    except ValueError:  # two lines that ran into each other
        return None
    return found if isinstance(found, dict) else None
