"""The blocks of code on the pages."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHELL = ("sh", "console")
LANGUAGES = (*SHELL, "python", "cpp")

# A block, by its page and the beginning of its text.
Key = tuple[str, str]


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def is_meant_by(self, key: Key) -> bool:
        return (self.page, True) == (key[0], self.text.startswith(key[1]))

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    return [
        Block(name, text.count("\n", 0, found.start()) + 1, found[2], textwrap.dedent(found[3]))
        for found in re.finditer(r"(?ms)^( *)```(\S+)\n(.*?)^\1```$", text)
        if found[2] in LANGUAGES
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def block(key: Key) -> Block:
    (found,) = (each for each in BLOCKS if each.is_meant_by(key))
    return found
