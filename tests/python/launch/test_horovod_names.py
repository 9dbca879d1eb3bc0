"""A script that says `import horovod.torch as hvd` runs unchanged, with its subprocesses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import ciranda
from ciranda.compat import NAMES, python_path

AS_HOROVODRUN = [
    sys.executable,
    "-c",
    "from ciranda.launch.cli.commands import as_horovodrun; as_horovodrun()",
]
WITH_NAMES = [sys.executable, "-m", "ciranda.compat.horovod"]

TRAIN = """
import sys
import torch
import horovod
import horovod.torch as hvd
from horovod.torch.mpi_ops import allreduce_async, synchronize
from horovod.torch.compression import Compression

hvd.init()
total = hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
mean = synchronize(allreduce_async(torch.tensor([float(hvd.rank())]), name="rank")).item()
print(hvd.rank(), total, mean, sys.argv[1:], __name__, horovod.__version__, hvd.__version__)
"""


@pytest.fixture
def run(launcher):
    def run(command, environment=None):
        return subprocess.run(
            command,
            env={**launcher.environment, **(environment or {})},
            cwd=launcher.folder,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def train_lines(size, prefixed=True):
    mean = (size - 1) / 2
    return [
        f"{f'[{rank}] ' if prefixed else ''}{rank} {float(size)} {mean} ['--lr', '3'] __main__ "
        "0.28.1 0.28.1"
        for rank in range(size)
    ]


def test_horovodrun_gives_its_ranks_the_names(launcher, run):
    (launcher.folder / "train.py").write_text(TRAIN)
    result = run([*AS_HOROVODRUN, "-np", "2", sys.executable, "train.py", "--lr", "3"])
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(result.stdout.splitlines()) == train_lines(2)


def test_agents_of_other_hosts_give_the_names_too(launcher, run):
    """A stand-in for ssh runs the agent here."""
    (launcher.folder / "ssh").write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    (launcher.folder / "ssh").chmod(0o755)
    path = {"PATH": f"{launcher.folder}:{launcher.environment['PATH']}"}
    words = ["-np", "2", "-H", "node7:2", sys.executable, "-c"]
    code = "import horovod; print(horovod.__file__)"
    result = run([*AS_HOROVODRUN, *words, code], path)
    file = os.path.join(NAMES, "horovod", "__init__.py")
    lines = sorted(result.stdout.splitlines())
    assert lines == [f"[0] {file}", f"[1] {file}"], result.stderr


def test_any_starter_does_with_the_module_in_between(launcher, run):
    (launcher.folder / "train.py").write_text(TRAIN)
    for words in (["train.py"], ["-m", "train"]):
        launcher.is_warm = words[0] == "-m"  # the other way is tried with new interpreters
        result = launcher.run("-np", "2", "-m", "ciranda.compat.horovod", *words, "--lr", "3")
        assert sorted(result.stdout.splitlines()) == train_lines(2), result.stderr
    alone = run([*WITH_NAMES, "train.py", "--lr", "3"])
    assert alone.stdout.splitlines() == train_lines(1, prefixed=False), alone.stderr


def test_ciranda_run_gives_no_names(launcher):
    result = launcher.run("-np", "1", "--", sys.executable, "-c", "import horovod")
    assert "No module named 'horovod'" in result.stderr


def test_dry_run_shows_the_folder(launcher, run):
    result = run([*AS_HOROVODRUN, "-np", "1", "--dry-run", "true"])
    assert f"  PYTHONPATH={NAMES}{os.pathsep}" in result.stdout


def test_paths_of_the_user_stay_behind_the_names(launcher, run):
    result = run([*AS_HOROVODRUN, "-np", "1", "-x", "PYTHONPATH=/a:/b", "env"])
    assert f"[0] PYTHONPATH={NAMES}:/a:/b\n" in result.stdout
    assert python_path(f"/a:{NAMES}::/b") == f"{NAMES}:/a:/b"
    assert python_path(None) == NAMES


def test_subprocesses_and_spawned_workers_find_the_names(launcher, run):
    (launcher.folder / "workers.py").write_text(
        "import subprocess, sys\n"
        "import horovod\n"
        "from torch.utils.data import DataLoader\n"
        "class Data:\n"
        "    def __len__(self): return 2\n"
        "    def __getitem__(self, index):\n"
        "        import horovod.torch\n"
        "        return index + len(horovod.__version__)\n"
        "if __name__ == '__main__':\n"
        "    loader = DataLoader(Data(), num_workers=1, multiprocessing_context='spawn')\n"
        "    print([batch.item() for batch in loader], flush=True)\n"
        "    subprocess.run([sys.executable, '-c', 'import horovod; print(horovod.__version__)'])\n"
    )
    # torch puts sockets into the temporary folder, and their paths are limited.
    result = run([*WITH_NAMES, "workers.py"], {"TMPDIR": "/tmp"})
    assert result.stdout.split("\n") == ["[6, 7]", "0.28.1", ""], result.stderr


def test_python_runs_the_script_as_it_would_without(launcher, run):
    (launcher.folder / "folder").mkdir()
    script = launcher.folder / "folder" / "script.py"
    script.write_text(
        "import sys; import beside; print(sys.path[0], sys.argv, sys.flags.optimize, __file__)"
    )
    (launcher.folder / "folder" / "beside.py").touch()
    options = ["-O"]
    plain = run([sys.executable, *options, "folder/script.py", "-m", "x"])
    found = run([sys.executable, *options, *WITH_NAMES[1:], "folder/script.py", "-m", "x"])
    assert found.stdout == plain.stdout != ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "usage: python -m ciranda.compat.horovod SCRIPT.py"),
        (["no_such.py"], 2, "can't open file"),
    ],
)
def test_wrong_use_is_a_sentence(launcher, run, arguments, code, words):
    result = run([*WITH_NAMES, *arguments])
    assert result.returncode == code
    assert words in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


def test_importing_horovod_imports_no_torch(run):
    code = "import horovod, horovod.runner, sys; print('torch' in sys.modules)"
    assert run([*WITH_NAMES, "-c", code]).stdout == "False\n"


def test_the_modules_that_scripts_import_from_are_there(run):
    code = """
import ciranda.torch as cr
import horovod.torch as hvd
from horovod.common.elastic import ObjectState, State, run_fn
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import extension_available, gloo_built, mpi_built, nccl_built
from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader
from horovod.runner.launch import run_commandline
from horovod.torch.elastic import TorchState, run
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import get_handler_registry, set_handler_registry
from horovod.torch.functions import broadcast_object, broadcast_parameters
from horovod.torch.optimizer import DistributedOptimizer
import horovod.torch.sync_batch_norm
assert HorovodInternalError is hvd.HorovodInternalError is cr.HorovodInternalError
assert DistributedOptimizer is hvd.DistributedOptimizer is cr.DistributedOptimizer
assert ProcessSet is hvd.ProcessSet and set(hvd.__all__) == set(cr.__all__)
assert all(getattr(hvd, name) is getattr(cr, name) for name in set(cr.__all__) - {"elastic"})
assert all(getattr(hvd.elastic, name) is getattr(cr.elastic, name) for name in cr.elastic.__all__)
assert AsyncDataLoaderMixin is cr.data.AsyncDataLoaderMixin
assert BaseDataLoader is cr.data.BaseDataLoader
assert not mpi_built() and extension_available("torch")
print("all there")
"""
    result = run([*WITH_NAMES, "-c", code])
    assert result.stdout == "all there\n", result.stderr


@pytest.mark.parametrize("module", ["spark", "ray", "tensorflow", "keras", "mxnet"])
def test_a_part_of_horovod_that_is_absent_says_so(run, module):
    result = run([*WITH_NAMES, "-c", f"import horovod.{module}"])
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: horovod.{module} is not there: ciranda ")


def test_an_installed_horovod_is_hidden_with_a_line(launcher, run):
    site = launcher.folder / "site"
    (site / "horovod").mkdir(parents=True)
    (site / "horovod" / "__init__.py").write_text("__version__ = 'another'")
    packages = os.path.dirname(os.path.dirname(ciranda.__file__))
    environment = {"PYTHONPATH": f"{packages}:{site}"}
    line = f"`horovod` is ciranda here, not the one at {site}/horovod\n"
    code = "import horovod; print(horovod.__version__)"
    found = run([*WITH_NAMES, "-c", code], environment)
    assert (found.stdout, found.stderr) == ("0.28.1\n", f"ciranda: {line}")
    command = ["-np", "2", sys.executable, "-c", code]
    found = run([*AS_HOROVODRUN, *command], environment)
    assert sorted(found.stdout.splitlines()) == ["[0] 0.28.1", "[1] 0.28.1"]
    assert found.stderr == f"horovodrun: {line}"
    installs = "import ciranda.compat.horovod as names; names.install(); "
    found = run([sys.executable, "-c", installs + code], environment)
    assert (found.stdout, found.stderr) == ("0.28.1\n", f"ciranda: {line}")
    late = run([sys.executable, "-c", "import horovod; " + installs], environment)
    assert late.stderr.splitlines()[-1].startswith("ImportError: install() comes too late: ")
