"""What a run's processes tell the comparison: lines of their output, whatever carries them, and at
the end a file of each rank, where all see one folder. Through it they also begin together.

A launcher puts prefixes in front of lines, so each is found by a word in it. It may also let two
long ones run into each other, as mpirun does: hence the file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MARK = "ciranda-compare:"
FOLDER = "CIRANDA_COMPARE_FOLDER"
_LOOK_S = 0.001


def say(**what: Any) -> None:
    """`rank`, and either `epoch`, which has ended, or `size` and `outcome`, at the end."""
    text = json.dumps(what)
    if "outcome" in what and FOLDER in os.environ:
        Path(os.environ[FOLDER], f"rank-{what['rank']}.json").write_text(text, encoding="utf-8")
    else:
        print(MARK, text, flush=True)


def meet(rank: int, size: int) -> None:
    """Blocks until all ranks have come, some of which meet nowhere else; at once where they see no
    one folder. The comparison ends a run of which one does not come."""
    if FOLDER not in os.environ:
        return
    here = [Path(os.environ[FOLDER], f"here-{each}") for each in range(size)]
    here[rank].touch()
    while not all(path.exists() for path in here):
        time.sleep(_LOOK_S)


def heard(line: str) -> dict[str, Any] | None:
    """What a line says; None for one that is the program's own."""
    _, mark, text = line.partition(MARK)
    return _parsed(text) if mark else None


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """What is in files."""
    for path in folder.glob("rank-*.json"):
        if (found := _parsed(path.read_text(encoding="utf-8"))) is not None:
            yield found


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:  # cut, or two that ran into each other
        return None
    return found if isinstance(found, dict) else None
