"""The commands and the code of README.md and docs/*.md run as they stand there.

Each block of `sh`, `console`, `python` or `cpp` is run, or is a row of NOT_RUN (given.py) with the
reason. A new block is run by itself: commands with a script that does nothing, fragments of Python
on four ranks, C++ as far as the compiler checks it. Where it takes more as given, that is a row of
GIVEN; where commands and Python belong together, of SCRIPTS.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import given
import pytest
from pages import BLOCKS, ROOT, SHELL, Block, Key, block
from ranks import run_ranks, values_of

pytestmark = pytest.mark.slow
LIMIT_S = 100


def _of(table: dict[Key, str], wanted: Block) -> str:
    return next((row for key, row in table.items() if wanted.is_meant_by(key)), "")


def _as_python(text: str) -> str:
    """A fragment as a whole: a loop has a body, and what is in a loop that is left out, has one."""
    text = re.sub(r"(?m)^\.\.\.\n(?= )", "if True:\n", text)
    return text + "    pass\n" if text.rstrip().endswith(":") else text


def _script(*keys: Key, prelude: str = given.PRELUDE) -> str:
    parts = [prelude]
    for each in map(block, keys):
        text = _as_python(each.text)
        for key, numbers in given.SMALLER.items():
            if each.is_meant_by(key):
                for number, smaller in numbers.items():
                    text = text.replace(number, smaller)
        parts += [_of(given.GIVEN, each), text, _of(given.AFTERWARDS, each)]
    return "\n\n".join(parts)


def _fragment(of: Block) -> str:
    """What is run on ranks of a ring."""
    begin = "" if "init(" in of.text or "dist." in of.text else "cr.init()"
    text = _as_python(of.text)
    more = (_of(given.GIVEN, of), text, _of(given.AFTERWARDS, of))
    return "\n\n".join((given.PRELUDE, begin, given.IN_A_RING, *more))


# --- what is run ---------------------------------------------------------------------------------


def _blocks(*languages: str) -> list[Block]:
    """Those that are neither in NOT_RUN nor a part of a script."""
    elsewhere: list[Key] = [*given.NOT_RUN, *given.ALONE, *given.BESIDE_A_SERVER]
    for parts, command, afterwards in given.SCRIPTS.values():
        elsewhere += [*parts, *afterwards, *([] if isinstance(command, str) else [command])]
    return [
        each
        for each in BLOCKS
        if each.language in languages
        and each.page != given.QUICKSTART
        and not any(each.is_meant_by(key) for key in elsewhere)
    ]


class Jobs:
    """Runs commands in folders of their own, two at a time, from the first question for one on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runtime = tempfile.mkdtemp(prefix="ct-")  # short: sockets lie there
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._running: dict[str, Future[str]] = {}
        self._stand_ins = folder / "bin"
        self._stand_ins.mkdir()
        for name, text in given.STAND_INS.items():
            self._write(self._stand_ins / name, text).chmod(0o755)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        shutil.rmtree(self._runtime)

    def start(
        self,
        name: str,
        command: str,
        files: Mapping[str, str] = MappingProxyType({}),
        most_ranks: int = 16,
    ) -> None:
        folder = self.folder_of(name)
        for path, text in {**given.FILES, **files}.items():
            self._write(folder / path, text)
        for program in ("a_program", "hosts.sh"):
            (folder / program).chmod(0o755)
        self._running[name] = self._pool.submit(self._run, command, folder, most_ranks)

    def folder_of(self, name: str) -> Path:
        return self._folder / re.sub(r"\W", "-", name)

    def wait_for(self, name: str) -> str:
        """What it printed."""
        return self._running[name].result()

    @staticmethod
    def _write(path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def _run(self, command: str, folder: Path, most_ranks: int) -> str:
        scripts = sysconfig.get_path("scripts")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        inherited = {
            name: text
            for name, text in os.environ.items()
            if not re.match("CIRANDA_|HOROVOD_|SLURM_|OMPI_|RANK|WORLD_SIZE|MASTER_", name)
        }
        environment = inherited | {
            "PATH": f"{self._stand_ins}:{scripts}:{os.environ['PATH']}",
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "XDG_RUNTIME_DIR": self._runtime,
            "REAL": scripts,
            "FREE_PORT": str(port),
            "MOST_RANKS": str(most_ranks),
            "NO_COLOR": "1",
        }
        process = subprocess.Popen(
            ["bash", "-euc", command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"not over after {LIMIT_S} s: {process.communicate()[0]}")
        assert process.returncode == 0, f"{command}\n{said}"
        return said


def _cpp() -> tuple[str, dict[str, str]]:
    """One file of all blocks: torch's headers take longer than all of them."""
    parts = [given.CPP_PRELUDE]
    for number, each in enumerate(_blocks("cpp")):
        includes = re.findall(r"(?m)^#include .*$", each.text)
        body = re.sub(r"(?m)^#include .*$", "", each.text)
        function = f"void block_{number}({given.CPP_ARGUMENTS}) {{"
        parts += [*includes, function, f'#line {each.line + 1} "{each.page}"', body, "}"]
    (ciranda,) = find_spec("ciranda").submodule_search_locations
    (torch,) = find_spec("torch").submodule_search_locations
    include = f"{torch}/include"
    folders = f"-I{ciranda}/include -isystem {include} -isystem {include}/torch/csrc/api/include"
    compiler = os.environ.get("CXX", "g++")
    return f"{compiler} -std=c++20 -fsyntax-only {folders} all.cc", {"all.cc": "\n".join(parts)}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path_factory.mktemp("pages"))
    jobs.start("cpp", *_cpp())
    for name, (parts, start, _) in given.SCRIPTS.items():
        commands = start if isinstance(start, str) else _commands(block(start))
        jobs.start(name, commands, {"train.py": _script(*parts)}, most_ranks=1)
    for key in given.ALONE:
        jobs.start(str(block(key)), "python alone.py", {"alone.py": _script(key, prelude="")})
    for each in _blocks(*SHELL):
        jobs.start(str(each), _commands(each))
    yield jobs
    jobs.close()


def _commands(of: Block) -> str:
    """Without the prompts of a console."""
    return re.sub(r"(?m)^\w*\$ ", "", of.text) if of.language == "console" else of.text


# --- tests ---------------------------------------------------------------------------------------
# In the order in which they are begun: each waits for its own job alone.


def test_fragments_of_cpp_compile(jobs: Jobs) -> None:
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("needs a C++ compiler")
    jobs.wait_for("cpp")


@pytest.mark.parametrize("name", given.SCRIPTS)
def test_commands_and_scripts_of_servers_run_together(jobs: Jobs, name: str) -> None:
    jobs.wait_for(name)
    for key in given.SCRIPTS[name][2]:
        values_of(run_ranks(_script(key), 1, env={"FOLDER": str(jobs.folder_of(name))}))


@pytest.mark.parametrize("key", given.ALONE, ids="-".join)
def test_a_script_that_starts_its_ranks_runs(jobs: Jobs, key: Key) -> None:
    jobs.wait_for(str(block(key)))


@pytest.mark.parametrize("command", _blocks(*SHELL), ids=str)
def test_commands_run(jobs: Jobs, command: Block) -> None:
    jobs.wait_for(str(command))


@pytest.mark.parametrize("fragment", _blocks("python"), ids=str)
def test_a_fragment_of_python_runs_on_ranks(fragment: Block, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"FOLDER": str(tmp_path), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    values_of(run_ranks(_fragment(fragment), given.RANKS, env=env))


@pytest.mark.parametrize("key", given.BESIDE_A_SERVER, ids="-".join)
def test_a_fragment_of_python_runs_beside_a_server(key: Key) -> None:
    values_of(run_ranks(_script(key), 1, servers=1))


def test_each_row_is_of_one_block() -> None:
    rows = [*given.NOT_RUN, *given.GIVEN, *given.AFTERWARDS, *given.SMALLER]
    rows += [*given.ALONE, *given.BESIDE_A_SERVER]
    for parts, command, afterwards in given.SCRIPTS.values():
        rows += [*parts, *afterwards, *([] if isinstance(command, str) else [command])]
    for row in rows:
        found = [str(each) for each in BLOCKS if each.is_meant_by(row)]
        assert len(found) == 1, f"{row} is of {found or 'no block'}"


def test_tests_that_are_named_instead_are_there() -> None:
    for reason in given.NOT_RUN.values():
        for path, name in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", reason):
            assert f"def {name or 'test_'}" in (ROOT / path).read_text(encoding="utf-8"), reason
