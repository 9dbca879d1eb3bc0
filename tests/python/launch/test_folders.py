"""Where a job makes its folders. What could break: a place where another user can put a folder of
his own in place of ours, and a place that would do but is not tried."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ciranda.launch import call_files

SHOW = "print(os.environ['CIRANDA_JOB_DIR'])\n"
SHOW_LOGS = "print(os.environ['TORCHELASTIC_ERROR_FILE'])\n"
OTHER = 12345

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


def first_line_of(launcher, text):
    result = launcher.run("-np", "1", launcher.script(text))
    assert result.returncode == 0, result.stderr
    return result.stdout


@needs_root
def test_another_users_runtime_folder_is_passed_over(launcher):
    """As root has it after `su` without `-`, or `sudo -E`."""
    assert first_line_of(launcher, SHOW).startswith(f"[0] {launcher.runtime_dir}/ciranda-")
    os.chown(launcher.runtime_dir, OTHER, OTHER)
    assert first_line_of(launcher, SHOW).startswith("[0] /tmp/ciranda-")


@needs_root
def test_logs_do_not_go_below_another_users_folder(launcher):
    assert first_line_of(launcher, SHOW_LOGS).startswith(f"[0] {launcher.temporary}/ciranda-logs-")
    os.chown(launcher.folder, OTHER, OTHER)
    assert first_line_of(launcher, SHOW_LOGS).startswith("[0] /tmp/ciranda-logs-")


def test_a_folder_in_which_others_may_write_is_passed_over(launcher):
    launcher.runtime_dir.chmod(0o777)
    assert first_line_of(launcher, SHOW).startswith("[0] /tmp/ciranda-")


@needs_root
def test_tmpdir_serves_where_tmp_is_read_only(launcher):
    folder = tempfile.mkdtemp(prefix="ct-", dir="/var/tmp")
    Path(folder, "rank.py").write_text(f"import os\n{SHOW}")

    def run(**environment):
        inherited = {**launcher.environment, **environment}
        del inherited["XDG_RUNTIME_DIR"]
        mount = 'mount -t tmpfs -o ro none /tmp && exec "$@"'
        return subprocess.run(
            [
                *("unshare", "-m", "sh", "-c", mount, "sh"),
                *(sys.executable, "-m", "ciranda", "run", "-np", "1", "rank.py"),
            ],
            capture_output=True,
            text=True,
            cwd=folder,
            env=inherited,
            timeout=60,
        )

    try:
        done = run(TMPDIR=folder)
        assert done.stdout.startswith(f"[0] {folder}/ciranda-"), done.stderr
        refused = run(TMPDIR="/proc")
        assert refused.returncode == 2
        assert "no folder can be made for the job (/tmp: Read-only file system; " in refused.stderr
    finally:
        shutil.rmtree(folder)


def test_a_call_that_others_could_have_written_is_not_read(tmp_path):
    path = call_files.call_file(str(tmp_path))
    call_files.write(path, b"a call")
    assert call_files.read(path) == b"a call"
    os.chmod(path, 0o622)  # noqa: S103 - what is refused
    with pytest.raises(PermissionError, match="other users may write it"):
        call_files.read(path)
