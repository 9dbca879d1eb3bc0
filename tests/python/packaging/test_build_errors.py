"""A build that cannot work says in its own words what to type instead."""

import subprocess
import venv
from pathlib import Path

PROJECT = Path(__file__).parents[3]


def test_build_without_torch_names_the_command(tmp_path: Path) -> None:
    # As in pip's isolated environment: an interpreter of its own, without torch.
    venv.create(tmp_path / "isolated", with_pip=False)
    done = subprocess.run(
        [
            "cmake",
            *("-G", "Ninja", "-S", str(PROJECT), "-B", str(tmp_path / "build")),
            "-DCIRANDA_BUILD_TORCH=ON",
            f"-DPython3_EXECUTABLE={tmp_path}/isolated/bin/python",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "pip install torch 'scikit-build-core>=1.1' ninja" in done.stderr
    assert "pip install --no-build-isolation ." in done.stderr
    assert "isolated" in done.stderr
    assert "Traceback" not in done.stderr


def test_setup_script_rejects_an_unknown_group() -> None:
    done = subprocess.run(
        ["bash", str(PROJECT / "tools/setup.sh"), "nonsense"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 2
    assert "nonsense" in done.stderr
