"""How comments read, by folder: tools/prose.py [ROOT...], by default csrc and python.

A thermometer, not a target: two figures that are low in code bases that we admire. LevelDB's db has
1.4 % and 0.8, MLX's distributed 2.5 % and 0.0, Gloo 3.0 % and 0.6, KJ 4.5 % and 0.7, DuckDB's
storage 1.5 % and 0.4. A comment that avoids these words and still has to be read twice is no
better: read it aloud to somebody who does not know the code.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

# A sentence that begins so has no subject, as a rule.
FRAGMENT = re.compile(
    r"^(Of|Who|Whose|Whom|What|Whether|Where|As|The same|Those|That|To whom|In what|By what"
    r"|From where|So many|Between|Until|Beside|Else|Also|Neither|None|Not|Nothing|Null|Once|True"
    r"|False|With|Without|By|Since|Within|After|Before|At|In)\b"
)
# Phrases that send a reader back to look for what they stand for.
TWICE = re.compile(
    r"\b(so many|so long|so soon|of which|of whom|whose|of its own|of their own|what is|what was"
    r"|what they|what it|who is|who has|the others|of all|is none|are none|as of|hears? of|is told"
    r"|are told|was told|sees to it|sees to|comes? back|goes? on|is there|are there|none of"
    r"|but for|by itself|to and fro|beside)\b",
    re.I,
)
SUFFIXES = (".h", ".cc", ".py")
SENTENCES_MIN = 30  # fewer say nothing about a folder


def blocks_cpp(text: str) -> Iterator[str]:
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        found = re.match(r"\s*///?\s?(.*)", line)
        words = found[1].strip() if found else ""
        if words and not set(words) <= set("-=*/ "):
            block.append(words)
        elif block:
            yield " ".join(block)
            block = []


def blocks_python(text: str) -> Iterator[str]:
    block: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            block.append(token.string.lstrip("#! ").strip())
        elif token.type not in (tokenize.NL, tokenize.NEWLINE) and block:
            yield " ".join(block)
            block = []
    for found in re.finditer(r'"""(.*?)"""', text, re.S):
        yield " ".join(found[1].split())


def figures(files: Iterable[Path]) -> tuple[int, float, float]:
    """Sentences; of these the fragments, in percent; phrases to read twice, in 1,000 words."""
    sentences = fragments = phrases = words = 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        for block in blocks_python(text) if file.suffix == ".py" else blocks_cpp(text):
            for sentence in re.split(r"(?<=[.:;])\s+", block):
                if len(sentence.strip()) < 12:
                    continue
                sentences += 1
                words += len(sentence.split())
                fragments += bool(FRAGMENT.match(sentence.strip()))
                phrases += len(TWICE.findall(sentence))
    return sentences, 100 * fragments / max(sentences, 1), 1000 * phrases / max(words, 1)


def main() -> None:
    roots = [Path(argument) for argument in sys.argv[1:]] or [Path("csrc"), Path("python")]
    files = [file for root in roots for file in root.rglob("*") if file.suffix in SUFFIXES]
    print(f"{'folder':40} {'sentences':>9} {'fragments %':>11} {'phrases/1,000 words':>19}")
    for folder in sorted({file.parent for file in files}):
        count, fragments, phrases = figures(file for file in files if file.parent == folder)
        if count >= SENTENCES_MIN:
            print(f"{folder!s:40} {count:9} {fragments:11.1f} {phrases:19.1f}")
    count, fragments, phrases = figures(files)
    print(f"{'all':40} {count:9} {fragments:11.1f} {phrases:19.1f}")


if __name__ == "__main__":
    main()
