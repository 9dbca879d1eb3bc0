"""What the facts of one host mean: each line that can warn or fail does, and says what mends it."""

from __future__ import annotations

import pytest
from made import GIB, WELL, WITH_GPU, changed

from ciranda.doctor.host_checks import HOST_CHECKS, host_lines
from ciranda.doctor.lines import Status
from ciranda.doctor.setting import Setting
from ciranda.launch.remote.meeting import Ports

WARN, FAIL, OK, SKIP = Status.WARN, Status.FAIL, Status.OK, Status.SKIP
HOSTS = Setting(alone=False)
GLOO, NCCL = "torch.ciranda.backends.0", "torch.ciranda.backends.1"

# check, status, what must be found, a word of what mends it, the facts, the setting
BAD = [
    ("cores", WARN, "bound to 1 of 8", "--bind-to none", [("cores.affinity", 1)], Setting()),
    ("cores", WARN, "9 ranks for 8", ":8", [], Setting(slots=9)),
    ("load", WARN, "load 9.5 on 8", "top", [("load.load_1min", 9.5)], Setting()),
    ("threads", FAIL, "'many'", "unset OMP", [("threads.OMP_NUM_THREADS", "many")], Setting()),
    ("threads", FAIL, "'0'", "unset MKL", [("threads.MKL_NUM_THREADS", "0")], Setting()),
    (
        "threads",
        WARN,
        "16 threads for 8 cores",
        "unset OMP_NUM_THREADS",
        [("threads.OMP_NUM_THREADS", "4")],
        Setting(slots=4),
    ),
    ("memory", FAIL, "100 MiB", "Free", [("memory.available_bytes", 100 << 20)], Setting()),
    ("memory", WARN, "1.0 GiB", "fewer ranks", [("memory.available_bytes", GIB)], Setting()),
    ("memory", FAIL, "group", "--memory", [("memory.cgroup_left_bytes", 1 << 20)], Setting()),
    (
        "shared_memory",
        FAIL,
        "Operation not permitted",
        "seccomp",
        [("memfd", {"error": "Operation not permitted"})],
        Setting(),
    ),
    ("dev_shm", WARN, "64 MiB", "--shm-size", [("dev_shm.free_bytes", 64 << 20)], Setting()),
    ("open_files", FAIL, "64", "ulimit -n", [("limits.open_files", [64, None])], Setting()),
    ("open_files", WARN, "1,024", "ulimit -n", [("limits.open_files", [1024, None])], Setting()),
    ("open_files", WARN, "1,024", "limits.conf", [("limits.open_files", [1024, 1024])], Setting()),
    ("processes", FAIL, "32", "ulimit -u", [("limits.processes", [32, None])], Setting()),
    ("processes", FAIL, "9 more", "--pids-limit", [("pids.cgroup_left", 9)], Setting()),
    ("processes", WARN, "99 more", "--pids-limit", [("pids.cgroup_left", 99)], Setting()),
    (
        "address_space",
        WARN,
        "4.0 GiB",
        "ulimit -v",
        [("limits.address_space", [4 * GIB] * 2)],
        Setting(),
    ),
    ("file_size", FAIL, "1 MiB", "ulimit -f", [("limits.file_size", [1 << 20, None])], Setting()),
    ("file_size", WARN, "9.0 GiB", "ulimit -f", [("limits.file_size", [9 * GIB, None])], Setting()),
    ("locked_memory", WARN, "mlx5_0", "ulimit -l", [("infiniband.devices", ["mlx5_0"])], Setting()),
    (
        "job_folder",
        FAIL,
        "/tmp: Read-only",
        "XDG",
        [("job_folder", {"problem": "/tmp: Read-only"})],
        Setting(),
    ),
    ("log_folder", FAIL, "not writable", "TMPDIR", [("log_folder.writable", False)], Setting()),
    ("log_folder", WARN, "1 MiB", "TMPDIR", [("log_folder.free_bytes", 1 << 20)], Setting()),
    ("clock", WARN, "hpet", "clocksource=tsc", [("clock.source", "hpet")], Setting()),
    ("clock", WARN, "other hosts", "set-ntp", [("clock.synchronised", False)], HOSTS),
    (
        "interfaces",
        FAIL,
        "no address fits",
        "--nic",
        [("interfaces.problem", "no address fits")],
        HOSTS,
    ),
    (
        "interfaces",
        FAIL,
        "no address fits",
        "--nic",
        [("interfaces.problem", "no address fits")],
        Setting(nic="eth9"),
    ),
    ("interfaces", WARN, "docker0", "--nic", [("interfaces.chosen", ["172.17.0.1"])], HOSTS),
    ("hostname", WARN, "no address", "10.0.0.1 node0", [("hostname.addresses", [])], Setting()),
    (
        "hostname",
        WARN,
        "127.0.1.1",
        "/etc/hosts",
        [("hostname.addresses", ["127.0.1.1"])],
        HOSTS,
    ),
    ("hostname", WARN, "5.0 s", "/etc/hosts", [("hostname.seconds", 5.0)], Setting()),
    ("ports", FAIL, "in use", "ip -brief", [("ports.problems", {"10.0.0.1": "in use"})], Setting()),
    (
        "ports",
        FAIL,
        "in use",
        "--port-range",
        [("ports.problems", {"10.0.0.1": "in use"})],
        Setting(ports=Ports(20_000, 20_009)),
    ),
    ("ports", WARN, "go out", "20000-20099", [], Setting(ports=Ports(40_000, 40_009))),
    ("ports", WARN, "only 101", "sysctl", [("ports.ephemeral", [32_768, 32_868])], Setting()),
    ("python", FAIL, "3.9.1", "3.10", [("python.version", "3.9.1")], Setting()),
    ("torch", FAIL, "libmkl", "2.15.*", [("torch", {"error": "no libmkl"})], Setting()),
    ("torch", FAIL, "2.11.0", "2.15.*", [("torch.version", "2.11.0")], Setting()),
    (
        "ciranda",
        FAIL,
        "libgloo",
        "pip install",
        [("torch.ciranda", {"error": "no libgloo"})],
        Setting(),
    ),
    (
        "openmp",
        WARN,
        "2 OpenMP",
        "one environment",
        [("torch.libraries.openmp", ["a", "b"])],
        Setting(),
    ),
    (
        "gloo",
        WARN,
        "libhiredis",
        "libgloo0",
        [(f"{GLOO}.available", False), (f"{GLOO}.why_not", "libhiredis is missing")],
        Setting(),
    ),
    ("driver", FAIL, "2 NVIDIA cards", "nvidia-driver", [("driver.cards", 2)], Setting()),
]
BAD_WITH_GPU = [
    ("driver", WARN, "for CPUs", "pytorch.org", [("torch.cuda", None)]),
    ("driver", FAIL, "CUDA 12.8", "newer driver", [("torch.gpu.driver_cuda", "12.8")]),
    ("driver", FAIL, "no device", "nvidia-smi", [("torch.gpu.error", "no device")]),
    (
        "driver",
        FAIL,
        "no device",
        "--gpus all",
        [("torch.gpu.error", "no device"), ("driver.device_files", 0)],
    ),
    ("nccl", WARN, "2 of them", "LD_LIBRARY_PATH", [("torch.libraries.nccl", ["a", "b"])]),
    ("nccl", WARN, "torch has 2.1.0", "LD_LIBRARY_PATH", [("torch.gpu.torch_nccl", "2.1.0")]),
    ("nccl", FAIL, "no GPU", "--check", [(f"{NCCL}.available", False)]),
    (
        "nccl",
        FAIL,
        "without NCCL",
        "build ciranda anew",
        [(f"{NCCL}.available", False), (f"{NCCL}.built", False)],
    ),
]


def verdicts(facts, setting=Setting()):  # noqa: B008 - it is frozen
    return {each.check.name: each.verdict for each in host_lines(facts, setting)}


@pytest.mark.parametrize("facts", [WELL, WITH_GPU], ids=["without a GPU", "with a GPU"])
def test_a_host_that_is_well_has_only_lines_that_are_ok(facts):
    for setting in (Setting(), Setting(slots=8, alone=False, ports=Ports(20_000, 20_099))):
        bad = {name: each for name, each in verdicts(facts, setting).items() if each.status != OK}
        assert not bad


@pytest.mark.parametrize(
    ("facts", "row"),
    [(WELL, row) for row in BAD] + [(WITH_GPU, (*row, Setting())) for row in BAD_WITH_GPU],
    ids=lambda each: f"{each[0]}: {each[2]}" if isinstance(each, tuple) else "",
)
def test_what_is_wrong_is_said_with_what_mends_it(facts, row):
    check, status, found, mend, changes, setting = row
    verdict = verdicts(changed(facts, *changes), setting)[check]
    assert verdict.status is status
    assert found in verdict.found
    assert mend in verdict.mend


@pytest.mark.parametrize(("name", "needed"), [(name, needed) for name, needed, _ in HOST_CHECKS])
def test_a_check_whose_facts_are_missing_is_skipped_and_says_why(name, needed):
    for fact in needed:
        if fact in ("ciranda", "python"):
            continue  # of Python itself
        lacking = changed(WELL, (fact, {"why_not": "no permission"}))
        assert verdicts(lacking)[name].status is SKIP
        assert "no permission" in verdicts(lacking)[name].found


def test_what_one_host_does_without_is_no_fault_of_it():
    alone = changed(
        WELL,
        ("interfaces.problem", "none"),
        ("interfaces.chosen", []),
        ("hostname.addresses", ["127.0.0.1"]),
        ("clock.synchronised", False),
    )
    assert {each.status for each in verdicts(alone).values()} == {OK}
    with_networks = changed(WELL, ("hostname.addresses", ["127.0.0.1"]))
    assert {each.status for each in verdicts(with_networks).values()} == {OK}
