"""A wrong variable makes a world of the wrong size or oversubscribes the cores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.environment import (
    cores_under_quota,
    count_cores,
    parse_assignments,
    parse_env_file,
)

DUMP = "import json; print(json.dumps(dict(os.environ)))"


def environments(launcher, *arguments, environment=None):
    logs = launcher.folder / "logs"
    script = launcher.script(DUMP)
    result = launcher.run("--log-dir", str(logs), *arguments, script, environment=environment)
    assert result.returncode == 0, result.stderr
    return [json.loads(path.read_text()) for path in sorted(logs.glob("rank-*.log"))]


def test_every_rank_finds_its_place_in_each_dialect(launcher):
    first, second = environments(launcher, "-np", "2")
    for own in ("CIRANDA_", "HOROVOD_"):
        assert [each[own + "RANK"] for each in (first, second)] == ["0", "1"]
        assert [each[own + "LOCAL_RANK"] for each in (first, second)] == ["0", "1"]
        for name, text in {
            "SIZE": "2",
            "LOCAL_SIZE": "2",
            "CROSS_RANK": "0",
            "CROSS_SIZE": "1",
        }.items():
            assert first[own + name] == second[own + name] == text
    for name in ("RANK", "LOCAL_RANK", "ROLE_RANK"):
        assert (first[name], second[name]) == ("0", "1")
    for name in ("GROUP_RANK", "NODE_RANK"):
        assert (first[name], second[name]) == ("0", "0")
    assert first["WORLD_SIZE"] == first["LOCAL_WORLD_SIZE"] == "2"
    assert first["MASTER_ADDR"] == "127.0.0.1"
    assert 1024 < int(first["MASTER_PORT"]) == int(second["MASTER_PORT"]) < 32768
    assert first["HOROVOD_HOSTNAME"]


def test_nccl_listens_where_it_has_to_unless_the_user_says_otherwise(launcher):
    (found,) = environments(launcher, "-np", "1")
    assert (found["NCCL_SOCKET_IFNAME"], found["NCCL_RAS_ENABLE"]) == ("lo", "0")
    theirs = {"NCCL_SOCKET_IFNAME": "eth1", "NCCL_RAS_ENABLE": "1"}
    (found,) = environments(launcher, "-np", "1", environment=theirs)
    assert {name: found[name] for name in theirs} == theirs


def test_the_job_gets_a_random_id_and_one_error_file_for_each_rank(launcher):
    first, second = environments(launcher, "-np", "2")
    again, _ = environments(launcher, "-np", "2")
    assert len(first["CIRANDA_JOB_ID"]) == 32 and int(first["CIRANDA_JOB_ID"], 16)
    assert first["CIRANDA_JOB_ID"] == second["CIRANDA_JOB_ID"] == first["TORCHELASTIC_RUN_ID"]
    assert first["CIRANDA_JOB_ID"] != again["CIRANDA_JOB_ID"]
    assert first["CIRANDA_ERROR_FILE"] == first["TORCHELASTIC_ERROR_FILE"]
    assert first["CIRANDA_ERROR_FILE"] != second["CIRANDA_ERROR_FILE"]
    assert Path(first["CIRANDA_ERROR_FILE"]).parent == Path(first["CIRANDA_LOG_DIR"])


def test_the_job_dir_is_private_and_shared_by_the_ranks(launcher):
    script = launcher.script(
        "folder = os.environ['CIRANDA_JOB_DIR']\n"
        "print(folder, oct(os.stat(folder).st_mode & 0o777), os.listdir(folder))"
    )
    result = launcher.run("-np", "2", "--no-color", script)
    lines = {line.partition(" ")[2] for line in result.stdout.splitlines()}
    assert len(lines) == 1
    folder, mode, content = lines.pop().split(" ")
    assert (mode, content) == ("0o700", "[]")
    assert Path(folder).parent == launcher.runtime_dir


def test_threads_share_the_cores_unless_set(launcher):
    cores = count_cores()
    assert environments(launcher, "-np", "2")[0]["OMP_NUM_THREADS"] == str(max(1, cores // 2))
    (kept, *_) = environments(launcher, "-np", "1", environment={"OMP_NUM_THREADS": "7"})
    assert kept["OMP_NUM_THREADS"] == "7"
    (chosen, *_) = environments(launcher, "-np", "1", "-x", "OMP_NUM_THREADS=5")
    assert chosen["OMP_NUM_THREADS"] == "5"


def test_x_sets_and_inherits_and_wins_over_the_env_file(launcher):
    (launcher.folder / "settings.env").write_text("ONE=file\nTWO=file\n")
    arguments = ("-np", "1", "--env-file", "settings.env", "-x", "ONE=x=y", "-x", "MINE")
    found = environments(launcher, *arguments, environment={"MINE": "inherited"})[0]
    assert (found["ONE"], found["TWO"], found["MINE"]) == ("x=y", "file", "inherited")


def test_a_variable_that_is_not_set_is_said_and_left_out(launcher):
    result = launcher.run("-np", "1", "-x", "NOT_SET_ANYWHERE", "true")
    assert result.returncode == 0
    assert "-x NOT_SET_ANYWHERE: not set here" in result.stderr


def test_env_file_knows_comments_quotes_and_export():
    text = """\ufeffFIRST=1
# a comment
PLAIN=value with spaces   # a comment
export EXPORTED=1
HASH=a#b
SINGLE='$as is \\n'
DOUBLE="two\\nlines \\"quoted\\""  # a comment
EMPTY=
"""
    assert parse_env_file(text, "f") == {
        "FIRST": "1",
        "PLAIN": "value with spaces",
        "EXPORTED": "1",
        "HASH": "a#b",
        "SINGLE": "$as is \\n",
        "DOUBLE": 'two\nlines "quoted"',
        "EMPTY": "",
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hunter2", "no '='"),
        ("2KEY=hunter2", "not a name"),
        ("KEY='hunter2", "not closed"),
        ('KEY="hunter2" more', "text follows"),
        ("KEY=hunter2\0", "zero byte"),
        ("RANK=7", "RANK is set by the launcher"),
    ],
)
def test_env_file_errors_name_the_line_and_never_a_value(line, words):
    with pytest.raises(LaunchError) as caught:
        parse_env_file(f"GOOD=1\n{line}\n", "my.env")
    assert str(caught.value).startswith("my.env, line 2: ")
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_identity_cannot_be_chosen_but_the_master_port_can():
    assert parse_assignments(["MASTER_PORT=1234"], {}) == ({"MASTER_PORT": "1234"}, [])
    with pytest.raises(LaunchError, match="set by the launcher"):
        parse_assignments(["CIRANDA_JOB_ID=0"], {})


def test_quota_of_cgroup_v2_and_its_parents_limits_the_cores(tmp_path):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (tmp_path / "a" / "cpu.max").write_text("250000 100000\n")
    (folder / "cpu.max").write_text("max 100000\n")
    assert cores_under_quota(8, "0::/a/b\n", str(tmp_path)) == 2
    (folder / "cpu.max").write_text("50000 100000\n")
    assert cores_under_quota(8, "0::/a/b\n", str(tmp_path)) == 1


def test_quota_of_cgroup_v1_limits_the_cores(tmp_path):
    folder = tmp_path / "cpu,cpuacct" / "job"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text("300000\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    groups = "4:memory:/job\n2:cpu,cpuacct:/job\n"
    assert cores_under_quota(8, groups, str(tmp_path)) == 3
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert cores_under_quota(8, groups, str(tmp_path)) == 8
