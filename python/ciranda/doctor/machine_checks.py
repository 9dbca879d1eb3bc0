"""Judges a host for a job by its cores, memory, limits, folders and clock. Pure."""

from __future__ import annotations

from ciranda.doctor.lines import Verdict, fail, ok, warn
from ciranda.doctor.setting import Facts, Setting

MIB = 1024 * 1024
GIB = 1024 * MIB
_MEMORY_MIN_BYTES = 512 * MIB  # enough for two ranks with torch
_MEMORY_WANTED_BYTES = 2 * GIB
_DEV_SHM_WANTED_BYTES = GIB  # Docker's default is 64 MiB
_LOGS_WANTED_BYTES = 100 * MIB
_FILES_MIN, _FILES_WANTED = 256, 4096
_PROCESSES_MIN, _PROCESSES_WANTED = 64, 1024  # a rank has about ten threads, and one for each core
_FILE_SIZE_MIN_BYTES = GIB  # memory that ranks share counts as a file
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")


def is_busy(facts: Facts) -> bool:
    """Returns true if programs want more cores than the host has."""
    load, cores = facts.get("load", {}), facts.get("cores", {})
    return bool(load.get("load_1min", 0.0) > cores.get("usable", 1))


def cores(facts: Facts, setting: Setting) -> Verdict:
    cores = facts["cores"]
    machine, affinity, usable = cores["machine"], cores["affinity"], cores["usable"]
    found = f"{usable} of {machine}"
    if affinity == 1 and machine > 1:
        return warn(
            f"this process is bound to 1 of {machine} cores",
            "Start without the binding: mpirun --bind-to none, srun --cpu-bind=none, or taskset "
            f"-c 0-{machine - 1}.",
        )
    if setting.slots > usable:
        return warn(
            f"{setting.slots} ranks for {found} cores",
            f"Name at most {usable} slots for this host, for ranks that outnumber the cores take "
            f"turns: -H {facts.get('host', 'HOST')}:{usable}",
        )
    if usable < affinity:
        found += (
            ", by the quota of its control group (ciranda run counts it, other programs may not)"
        )
    elif affinity < machine:
        found += ", by CPU affinity"
    return ok(found)


def load(facts: Facts, _: Setting) -> Verdict:
    found = f"load {facts['load']['load_1min']:.1f} on {facts['cores']['usable']} cores"
    if is_busy(facts):
        return warn(
            f"{found}: busy",
            "Wait for the other programs, or end them, for all ranks wait for the slowest: top",
        )
    return ok(found)


def threads(facts: Facts, setting: Setting) -> Verdict:
    usable = facts["cores"]["usable"]
    values = {name: text for name, text in facts["threads"].items() if text is not None}
    for name, text in values.items():
        counts = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
        if 0 in counts:
            return fail(f"{name} is '{text}', not a number from 1 on", f"Unset it: unset {name}")
        if counts[0] * setting.slots > usable and counts[0] > 1:
            return warn(
                f"{name} is {text}: with {setting.slots} ranks that is "
                f"{counts[0] * setting.slots} threads for {usable} cores",
                f"Unset it, and ciranda run gives each rank its share of the cores: unset {name}",
            )
    found = ", ".join(f"{name}={text}" for name, text in values.items())
    return ok(found or "OMP_NUM_THREADS is not set: ciranda run shares the cores among ranks")


def memory(facts: Facts, _: Setting) -> Verdict:
    memory = facts["memory"]
    left, by_group = memory["available_bytes"], memory["cgroup_left_bytes"]
    whose = "available"
    if by_group is not None and by_group < left:
        left, whose = by_group, "left by the limit of the control group"
    found = f"{_size(left)} {whose}, of {_size(memory['total_bytes'])}"
    if left < _MEMORY_MIN_BYTES:
        return fail(
            found,
            "Free some, or raise the container's limit (docker run --memory), for a rank with "
            "torch takes some 250 MiB before its model.",
        )
    if left < _MEMORY_WANTED_BYTES:
        return warn(found, "Free some, or use fewer ranks, before the kernel kills one: free -m")
    return ok(found)


def shared_memory(facts: Facts, _: Setting) -> Verdict:
    if facts["memfd"].get("works"):
        return ok("memfd works, which ranks of a host share")
    return fail(
        f"memfd_create fails: {facts['memfd'].get('error', 'it says nothing')}",
        "Allow memfd_create in the sandbox or seccomp profile of the container, for ranks of a "
        "host share memory through it: docker run --security-opt seccomp=PROFILE.json",
    )


def dev_shm(facts: Facts, _: Setting) -> Verdict:
    space = facts["dev_shm"]
    found = f"{_size(space['free_bytes'])} free of {_size(space['size_bytes'])}"
    if space["free_bytes"] < _DEV_SHM_WANTED_BYTES:
        return warn(
            f"{found}; workers of DataLoaders need it, ciranda does not",
            "Make it larger (docker run --shm-size=8g), or load data with num_workers=0.",
        )
    return ok(found)


def open_files(facts: Facts, _: Setting) -> Verdict:
    return _limit(facts, "open_files", _FILES_MIN, _FILES_WANTED, "n", "files", 65_536)


def processes(facts: Facts, _: Setting) -> Verdict:
    left = facts.get("pids", {}).get("cgroup_left")
    if left is not None and left < _PROCESSES_WANTED:
        found = f"the control group allows {left} more processes and threads"
        mend = "Raise the limit of the container: docker run --pids-limit=-1"
        return fail(found, mend) if left < _PROCESSES_MIN else warn(found, mend)
    return _limit(
        facts, "processes", _PROCESSES_MIN, _PROCESSES_WANTED, "u", "processes and threads", 65_536
    )


def address_space(facts: Facts, _: Setting) -> Verdict:
    soft, _hard = facts["limits"]["address_space"]
    if soft is None:
        return ok("no limit")
    return warn(
        f"limited to {_size(soft)}",
        "Lift the limit, for ranks reserve far more addresses than they use: ulimit -v unlimited",
    )


def file_size(facts: Facts, _: Setting) -> Verdict:
    soft, _hard = facts["limits"]["file_size"]
    if soft is None:
        return ok("no limit")
    found = f"limited to {_size(soft)}, and memory that ranks share counts as a file"
    mend = "Lift the limit: ulimit -f unlimited"
    return fail(found, mend) if soft < _FILE_SIZE_MIN_BYTES else warn(found, mend)


def locked_memory(facts: Facts, _: Setting) -> Verdict:
    soft, _hard = facts["limits"]["locked_memory"]
    found = "no limit" if soft is None else f"limited to {_size(soft)}"
    devices = facts.get("infiniband", {}).get("devices", [])
    if soft is None or not devices:
        return ok(found if soft is None else f"{found}, which only RDMA would mind")
    return warn(
        f"{found}, and NCCL locks memory for {devices[0]}",
        "Lift the limit, in /etc/security/limits.conf or with docker run --ulimit memlock=-1: "
        "ulimit -l unlimited",
    )


def _limit(
    facts: Facts, name: str, least: int, wanted: int, letter: str, what: str, better: int
) -> Verdict:
    soft, hard = facts["limits"][name]
    if soft is None or soft >= wanted:
        return ok("no limit" if soft is None else f"{soft:,} {what}")
    mend = f"Raise the limit: ulimit -{letter} {better}"
    if hard is not None and hard < wanted:
        mend = (
            f"Raise the hard limit too, in /etc/security/limits.conf or with docker run --ulimit: "
            f"ulimit -{letter} {better}"
        )
    found = f"at most {soft:,} {what}"
    return fail(found, mend) if soft < least else warn(found, mend)


def job_folder(facts: Facts, _: Setting) -> Verdict:
    folder = facts["job_folder"]
    if "problem" in folder:
        return fail(
            f"no folder with a socket can be made: {folder['problem']}",
            "Make /tmp writable, or name a folder of yours by a short path: "
            "export XDG_RUNTIME_DIR=/run/user/$(id -u)",
        )
    return ok(f"in {folder['path']}")


def log_folder(facts: Facts, _: Setting) -> Verdict:
    space = facts["log_folder"]
    found = f"{_size(space['free_bytes'])} free in {space['path']}"
    if not space["writable"]:
        return fail(
            f"{space['path']} is not writable",
            "Name a folder that is, for logs of ranks: export TMPDIR=FOLDER",
        )
    if space["free_bytes"] < _LOGS_WANTED_BYTES:
        return warn(found, "Free some, or name another folder for logs: export TMPDIR=FOLDER")
    return ok(found)


def clock(facts: Facts, setting: Setting) -> Verdict:
    source, synchronised = facts["clock"]["source"], facts["clock"]["synchronised"]
    if source in _SLOW_CLOCKS:
        return warn(
            f"the kernel reads the time from {source}, which takes microseconds",
            "Boot with clocksource=tsc if the machine's is stable: dmesg | grep -i clocksource",
        )
    if synchronised:
        return ok(f"{source}, synchronised")
    if setting.alone:
        return ok(f"{source}; nothing sets it by others, which one host does not need")
    if synchronised is None:
        return ok(f"{source}; whether it is synchronised cannot be seen here")
    return warn(
        f"{source}; nothing keeps it with the other hosts' clocks",
        "Let NTP set it, so that times in logs compare: timedatectl set-ntp true",
    )


def _size(count_bytes: int) -> str:
    if abs(count_bytes) >= GIB:
        return f"{count_bytes / GIB:.1f} GiB"
    return f"{count_bytes / MIB:.0f} MiB"
