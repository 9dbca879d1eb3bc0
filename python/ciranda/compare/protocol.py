"""Messages from the processes of a run to the comparison.

During a run, messages are lines of a process's output. The outcome at its end is one file for each
rank, if all ranks see one folder. Ranks also use that folder to begin together.

Launchers put prefixes in front of lines, so a message is found by its marker. Launchers such as
mpirun may also mix two long lines, which is why the outcome is a file.
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
    """Sends `rank` with `epoch`, which has ended, or at the end with `size` and `outcome`.

    With `epoch`, `step` and `steps` it tells where in an epoch the rank is.
    """
    text = json.dumps(what)
    if "outcome" in what and FOLDER in os.environ:
        Path(os.environ[FOLDER], f"rank-{what['rank']}.json").write_text(text, encoding="utf-8")
    else:
        print(MARK, text, flush=True)


def meet(rank: int, size: int, value: float = 0.0, name: str = "here") -> float:
    """Blocks until all ranks have called it with this name; some systems have no other barrier.

    Returns rank 0's value. Each name is for one meeting. Returns `value` at once if there is no
    shared folder. The time limit of the comparison ends a run in which a rank is missing.
    """
    if FOLDER not in os.environ:
        return value
    here = [Path(os.environ[FOLDER], f"{name}-{each}") for each in range(size)]
    draft = here[rank].with_suffix(".new")
    draft.write_text(repr(value), encoding="utf-8")
    draft.rename(here[rank])  # whoever sees the file sees the value
    while not all(path.exists() for path in here):
        time.sleep(_LOOK_S)
    return float(here[0].read_text(encoding="utf-8"))


def heard(line: str) -> dict[str, Any] | None:
    """Returns the message in a line of output, or None if the line has none."""
    _, mark, text = line.partition(MARK)
    return _parsed(text) if mark else None


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the outcomes that ranks have written into files."""
    for path in folder.glob("rank-*.json"):
        if (found := _parsed(path.read_text(encoding="utf-8"))) is not None:
            yield found


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:  # cut off, or two lines that got mixed
        return None
    return found if isinstance(found, dict) else None
