"""Doxygen's filter: prints a public header with its comments as Doxygen's own, on the same lines.

The headers are commented for who reads them: `//` before what it is about, or behind it. A comment
before an empty line, or of dashes, is about all that follows, and stays as it is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_ALONE = re.compile(r"( *)// ?(.*)$")
_BEHIND = re.compile(r"( *)(\S.*?[;,{])( +)// (.*)$")
_HEADING = re.compile(r" *// ---")


def as_doxygen(text: str) -> str:
    lines = text.split("\n")
    begin = 0  # of the comment that ends before this line
    for number, line in enumerate(lines):
        if _ALONE.match(line):
            continue
        if line and not _HEADING.match(lines[begin]):
            lines[begin:number] = map(_before, lines[begin:number])
        lines[number] = _behind(line)
        begin = number + 1
    return "\n".join(lines)


def _before(line: str) -> str:
    indent, text = _ALONE.match(line).groups()
    # What is indented is an example, to Markdown by four spaces.
    return f"{indent}/// {'  ' + text if text.startswith('  ') else _plain(text)}".rstrip()


def _behind(line: str) -> str:
    found = _BEHIND.match(line)
    if not found:
        return line
    indent, code, gap, text = found.groups()
    if code.endswith("{"):  # of what begins here
        return f"{indent}/** {_plain(text)} */ {code}"
    return f"{indent}{code}{gap}///< {_plain(text)}"


def _plain(text: str) -> str:
    """No mark-up but `code`."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\@#<>|~])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    print(as_doxygen(Path(sys.argv[1]).read_text(encoding="utf-8")), end="")
