"""`ciranda run --check`: which backends this build and this machine have."""

from __future__ import annotations

from ciranda import __version__
from ciranda.launch.errors import LaunchError

_HEAD = ("backend", "built", "available", "version", "library, or what is missing")


def backend_table() -> str:
    """Returns a table of the backends. Imports torch, which takes seconds; needs no job or GPU."""
    try:
        from ciranda.torch import backends
    except ImportError as error:
        raise LaunchError(f"ciranda.torch cannot be imported: {error}") from error
    rows = [_HEAD]
    for found in backends.found():
        version, path = found["version"], found["path"]
        names = [found["name"]]
        if found["name"] == "native":  # --cpu-operations chooses it as shm or ring
            names, version, path = ["shm", "ring"], __version__, backends.library()
        facts = [_yes(found["built"]), _yes(found["available"]), version or "-"]
        last = ": ".join(text for text in (path, found["why_not"]) if text)
        rows += [(name, *facts, last) for name in names]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    widths[-1] = 0
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"
