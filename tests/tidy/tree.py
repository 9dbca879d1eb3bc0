"""The files of the project as the tidy rules see them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

GENERATED_FOLDERS = {
    ".git",
    ".venv",
    "build",
    "dist",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    ".cache",
    ".benchmarks",
}
CPP = {".cc", ".h", ".cpp"}
TEXT = CPP | {".py", ".pyi", ".md", ".sh", ".cmake", ".txt", ".toml", ".json", ".yml", ".in", ""}


class Tree:
    """Paths are relative to the root and use forward slashes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    @cache  # noqa: B019 - a Tree lives as long as the test run
    def paths(self) -> list[str]:
        def walk(folder: Path) -> Iterator[str]:
            for entry in sorted(folder.iterdir()):
                if entry.name in GENERATED_FOLDERS or entry.name.startswith(".venv-"):
                    continue
                if entry.name.endswith(".egg-info"):
                    continue
                if entry.is_dir():
                    yield from walk(entry)
                else:
                    yield entry.relative_to(self.root).as_posix()

        return list(walk(self.root))

    def under(self, prefix: str, suffixes: set[str]) -> list[str]:
        return [p for p in self.paths if p.startswith(prefix) and Path(p).suffix in suffixes]

    @cache  # noqa: B019
    def text(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    @cache  # noqa: B019
    def code(self, path: str) -> str:
        """The text without comments; line numbers stay. Strings stay too: some rules want them."""
        if path.endswith((".py", ".pyi")):
            return re.sub(r"(?m)(^|\s)#.*$", "", self.text(path))
        # A string literal is matched first, so that "//" inside one does not start a comment.
        pattern = r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/'
        return re.sub(pattern, _blank_comment, self.text(path), flags=re.DOTALL)

    def includes(self, path: str) -> list[tuple[int, str]]:
        """(line number, what is between the quotes or angle brackets)."""
        found = re.finditer(r'(?m)^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', self.text(path))
        return [(line_of(self.text(path), match.start()), match[1]) for match in found]

    def matches(self, pattern: str, paths: list[str]) -> Iterator[tuple[str, int, str]]:
        """(path, line number, matched text) of `pattern` in the code of `paths`."""
        for path in paths:
            code = self.code(path)
            for match in re.finditer(pattern, code):
                yield path, line_of(code, match.start()), match[0].strip()


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _blank_comment(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith('"') else "\n" * match[0].count("\n")
