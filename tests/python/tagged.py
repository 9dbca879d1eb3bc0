"""Processes found again by what is in their environment, wherever they hang in the tree."""

from __future__ import annotations

from pathlib import Path


def tagged_processes(tag: str) -> list[int]:
    """Every living process that inherited `tag`, which is NAME=value."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if tag.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # it has just ended
            continue
    return found
