"""Each planted mistake still has the one place in core that it is planted in."""

from __future__ import annotations

from pathlib import Path

import pytest

from .mutants import plant, sources_of_core
from .suites import ALL, Mutant


def test_names_are_unique_and_there_are_enough() -> None:
    assert len({mutant.name for _, mutant in ALL}) == len(ALL) >= 64


def test_each_has_one_place() -> None:
    sources = sources_of_core()
    for _, mutant in ALL:
        path, text = plant(mutant, sources)
        assert text != sources[path], mutant.name


@pytest.mark.parametrize("text", ["f(1);", "f(1);\nf(\n    1);"])
def test_formatting_changes_nothing_but_a_second_place_does(text: str) -> None:
    sources = {Path("a.cc"): f"void g() {{\n  {text}\n}}\n"}
    mutant = Mutant("calls_another", "f( 1 );", "h();")
    if text.count("f") == 1:
        assert plant(mutant, sources)[1] == "void g() {\n  h();\n}\n"
    else:
        with pytest.raises(LookupError, match=r"calls_another: .* is in a.cc, a.cc"):
            plant(mutant, sources)
