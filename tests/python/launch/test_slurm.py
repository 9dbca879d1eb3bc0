"""Slurm's variables: an allocation's nodes must be taken as they are, and all tasks of a step must
derive the same place to meet."""

from __future__ import annotations

import pytest

from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.hosts import Host
from ciranda.launch.plan.slurm import allocated_hosts, step_rendezvous

ALLOCATION = {"SLURM_JOB_NODELIST": "n[01-03],m", "SLURM_TASKS_PER_NODE": "4(x2),2,1"}


def test_an_allocations_nodes_are_the_hosts():
    named = allocated_hosts(ALLOCATION)
    assert named is not None
    assert named.hosts == (Host("n01", 4), Host("n02", 4), Host("n03", 2), Host("m", 1))
    without_tasks = allocated_hosts({"SLURM_JOB_NODELIST": "n[01-02]"})
    assert without_tasks is not None and without_tasks.hosts == (Host("n01"), Host("n02"))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_NODELIST": "n01", "SLURM_TASKS_PER_NODE": "4"},
        {**ALLOCATION, "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "0"},
    ],
)
def test_one_node_or_a_step_names_no_hosts(environment):
    assert allocated_hosts(environment) is None


def test_the_shell_of_salloc_names_the_hosts_of_its_allocation():
    shell = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "4294967290"}
    assert allocated_hosts({**ALLOCATION, **shell}) == allocated_hosts(ALLOCATION) is not None


@pytest.mark.parametrize(
    "tasks", ["4(x2),2", "4(x5)", "4(x2),2,1,1", "", "x", "4(x2", "0(x4)", "4\n", "1," * 9999]
)
def test_other_numbers_of_tasks_cost_a_sentence(tasks):
    with pytest.raises(LaunchError, match="should be the tasks of each of 4 nodes") as refused:
        allocated_hosts({**ALLOCATION, "SLURM_TASKS_PER_NODE": tasks})
    assert str(refused.value).isprintable() and len(str(refused.value)) < 200


def test_the_tasks_of_a_step_meet_on_its_first_node():
    step = {"SLURM_STEP_NODELIST": "n[07,09]", "SLURM_JOB_ID": "1234567", "SLURM_STEP_ID": "0"}
    assert step_rendezvous(step) == "n07:23317"
    assert step_rendezvous({**step, "SLURM_STEP_ID": "1"}) == "n07:20179"
    for name in step:
        assert step_rendezvous({**step, name: ""}) is None


def test_launchers_of_one_step_that_know_nothing_of_each_other_are_refused():
    with pytest.raises(LaunchError) as refused:
        allocated_hosts({**ALLOCATION, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"})
    assert str(refused.value) == (
        "srun has started several launchers (SLURM_STEP_NUM_TASKS is '2'), and each would start "
        "its own job; for one job start one launcher without srun, or one on each node with "
        "--no-ssh"
    )


def test_a_launcher_in_an_allocation_uses_its_nodes(launcher):
    result = launcher.run("--dry-run", "true", environment=ALLOCATION)
    assert (result.returncode, result.stderr) == (0, "")
    assert "11 ranks on 4 hosts" in result.stdout
    result = launcher.run("-np", "12", "--dry-run", "true", environment=ALLOCATION)
    assert "more ranks than the 11 slots of Slurm's allocation" in result.stderr


def test_a_launcher_in_a_step_needs_no_rendezvous(launcher, tmp_path):
    step = {
        "SLURM_NODEID": "1",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_JOB_ID": "5",
        "SLURM_STEP_ID": "0",
    }
    options = ("--no-ssh", "--key-file", str(tmp_path / "key"), "-np", "1", "--dry-run")
    result = launcher.run(*options, "true", environment=step)
    assert (result.returncode, result.stderr) == (0, "")
    assert "CIRANDA_RENDEZVOUS=n1:21785" in result.stdout
