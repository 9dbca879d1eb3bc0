"""Can anybody sleep, or go round, for ever? Models of the waits, of which spin tries every order of
steps; and mistakes planted in them, each of which it must find."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .models import MISTAKES, PROGRAMS, SMALL, Mistake, Program

HERE = Path(__file__).parent
MEMORY_MB = 4_000
OWN_MEMORY_MB = 8_000  # spin's own search; the largest takes 5,200
DEPTH = 200_000
TRAIL_LINES = 120

# Where no run comes back to a state, each run ends; where it ends nobody is asleep, which pan looks
# for; so everybody reaches his end. pan searches depth-first: of a cycle's states, the first that
# it comes to is still on its stack when it has gone round. There (II == 2) it is made to complain.
# States inside of an atomic are not kept; a cycle of these alone exceeds DEPTH, an error as well.
#
# pan leaves out orders (partial-order reduction), and hides no cycle by that. Where it tries a
# private step of one process alone, take a run without end that begins otherwise: the step comes
# later in it and may as well come first, or it never comes and may be put in front. Either way a
# run without end begins with that step.
ON_THE_STACK = "JJ = (II == 2)?1:0;"
ENDLESS = "endless cycle"  # with " cycle" in its text, pan marks in the trail where it begins
COMPLAIN = f'if (II == 2) {{ depthfound = Lstate->tagged - 1; uerror("{ENDLESS}"); }}'

pytestmark = [
    pytest.mark.skipif(shutil.which("spin") is None, reason="no spin (Debian's package spin)"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc"),
    pytest.mark.timeout(600),  # some search for 5 s, on a machine that may be busy
    pytest.mark.slow,
]


def call(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def complain_of_cycles(pan: Path) -> None:
    text = pan.read_text()
    assert ON_THE_STACK in text, "another version of spin?"
    pan.write_text(text.replace(ON_THE_STACK, f"{ON_THE_STACK}\n{COMPLAIN}"))


def check(program: Program, folder: Path, mistake: int = 0, own: bool = False) -> str:
    """The trail to the first state in which somebody waits for ever, or to which a run comes back;
    "" if there is none. `own`: spin's own search, for cycles alone, which takes much longer."""
    for source in HERE.glob("*.pml"):
        shutil.copy(source, folder)
    options = [f"-DPROGRAM={program.name}", f"-DMISTAKE={mistake}", f"{program.model}.pml"]
    call(["spin", "-a", *options], folder)
    if not own:
        complain_of_cycles(folder / "pan.c")
    # Where the search is short, compiling takes longer.
    short = (program.states < SMALL and not own) or mistake != 0
    compiler = (shutil.which("tcc") or "gcc") if short else "gcc"
    kind, sought = ("-DNP", ["-l"]) if own else ("-DSAFETY", [])
    memory = f"-DMEMLIM={OWN_MEMORY_MB if own else MEMORY_MB}"
    flags = ["-w", "-O0" if short else "-O1", kind, "-DNOFAIR", memory]
    call([compiler, *flags, "-o", "pan", "pan.c"], folder)
    searched = call(["./pan", *sought, f"-m{DEPTH}", "-w22" if short else "-w24"], folder)
    errors = re.search(r"errors: (\d+)", searched)
    assert errors and "max search depth too small" not in searched, searched
    if errors[1] == "0":
        # Spin says so when it gave up: then nothing is proven.
        assert "Search not completed" not in searched, searched
        return ""
    trail = call(["spin", "-t", "-p", *options], folder).splitlines()
    return "\n".join([searched.splitlines()[0], *trail[-TRAIL_LINES:]])


def find(model: str, name: str) -> Program:
    return next(each for each in PROGRAMS if (each.model, each.name) == (model, name))


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(each, id=f"{each.model}-{each.name}", marks=[pytest.mark.soak] * each.soak)
        for each in PROGRAMS
    ],
)
def test_everybody_ends(program: Program, tmp_path: Path) -> None:
    trail = check(program, tmp_path)
    assert not trail, f"not everybody ends in {program.name} of {program.model}:\n{trail}"


@pytest.mark.soak
@pytest.mark.timeout(1800)  # the longest takes 100 s alone
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: f"{each.model}-{each.name}")
def test_spin_finds_no_cycle_either(program: Program, tmp_path: Path) -> None:
    trail = check(program, tmp_path, own=True)
    assert not trail, f"somebody goes round in {program.name} of {program.model}:\n{trail}"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: f"{each.model}-{each.number}")
def test_a_planted_mistake_is_found(mistake: Mistake, tmp_path: Path) -> None:
    trail = check(find(mistake.model, mistake.program), tmp_path, mistake.number)
    assert trail, f"everybody ends although {mistake.sentence}"
    assert (ENDLESS in trail.splitlines()[0]) == mistake.endless, trail


@pytest.mark.parametrize("model", sorted({each.model for each in PROGRAMS}))
def test_the_tables_are_whole(model: str) -> None:
    text = (HERE / f"{model}.pml").read_text()
    planted = {int(number) for number in re.findall(r"MISTAKE [!=]= (\d+)", text)} - {0}
    listed = [each.number for each in MISTAKES if each.model == model]
    assert planted == set(listed) and len(listed) == len(set(listed))
    programs = re.findall(
        r"^#\w+ PROGRAM == (\w+)$", (HERE / f"{model}_programs.pml").read_text(), re.M
    )
    assert programs == [each.name for each in PROGRAMS if each.model == model]
