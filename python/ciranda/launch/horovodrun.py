"""Options of horovodrun that `ciranda run` does not take: what to do instead."""

from __future__ import annotations

_SSH = "ssh reads it from its own configuration; write {} for the host into ~/.ssh/config"
_VARIABLE = "give the ranks a variable instead: -x {}"
_NOT_NEEDED = "leave it out: {}"
_ABSENT = "this is not there yet: {}"

_AUTOTUNE = _ABSENT.format("nothing is tuned at run time")
_ELASTIC = _ABSENT.format("the number of ranks stays what it was at the start")
_CHOSEN = _NOT_NEEDED.format("gradients are always reduced inside each host first")

ANSWERS = {
    "-p": _SSH.format("Port"),
    "--ssh-port": _SSH.format("Port"),
    "-i": _SSH.format("IdentityFile"),
    "--ssh-identity-file": _SSH.format("IdentityFile"),
    "-v": "write --verbose; horovodrun's versions are in `ciranda --version`",
    "--version": "write `ciranda --version`",
    "--disable-cache": _NOT_NEEDED.format("no finding about hosts is kept between two starts"),
    "--start-timeout": _VARIABLE.format("CIRANDA_START_TIMEOUT_SECONDS=SECONDS"),
    "--network-interfaces": "write --nic",
    "--network-interface": "write --nic",
    "--output-filename": "write --log-dir DIR",
    "--config-file": "write the options out, and variables into a file for --env-file",
    "--host-discovery-script": _ELASTIC,
    "--min-np": _ELASTIC,
    "--min-num-proc": _ELASTIC,
    "--max-np": _ELASTIC,
    "--max-num-proc": _ELASTIC,
    "--slots-per-host": _ELASTIC,
    "--elastic-timeout": _ELASTIC,
    "--reset-limit": _ELASTIC,
    "--blacklist-cooldown-range": _ELASTIC,
    "--fusion-threshold-mb": _VARIABLE.format("CIRANDA_FUSION_THRESHOLD=BYTES"),
    "--cycle-time-ms": _NOT_NEEDED.format("there are no cycles, an operation starts at once"),
    "--cache-capacity": _VARIABLE.format("CIRANDA_CACHE_CAPACITY=N"),
    "--hierarchical-allreduce": _CHOSEN,
    "--no-hierarchical-allreduce": _CHOSEN,
    "--hierarchical-allgather": _CHOSEN,
    "--no-hierarchical-allgather": _CHOSEN,
    "--torus-allreduce": _CHOSEN,
    "--no-torus-allreduce": _CHOSEN,
    "--autotune": _AUTOTUNE,
    "--autotune-log-file": _AUTOTUNE,
    "--autotune-warmup-samples": _AUTOTUNE,
    "--autotune-steps-per-sample": _AUTOTUNE,
    "--autotune-bayes-opt-max-samples": _AUTOTUNE,
    "--autotune-gaussian-process-noise": _AUTOTUNE,
    "--timeline-filename": _VARIABLE.format("CIRANDA_TIMELINE=FILE"),
    "--timeline-mark-cycles": _NOT_NEEDED.format("there are no cycles"),
    "--no-timeline-mark-cycles": _NOT_NEEDED.format("there are no cycles"),
    "--no-stall-check": _VARIABLE.format("CIRANDA_STALL_WARNING_SECONDS=0"),
    "--stall-check": _NOT_NEEDED.format("stalls are always looked for"),
    "--stall-check-warning-time-seconds": _VARIABLE.format("CIRANDA_STALL_WARNING_SECONDS=SECONDS"),
    "--stall-check-shutdown-time-seconds": _VARIABLE.format(
        "CIRANDA_STALL_SHUTDOWN_SECONDS=SECONDS"
    ),
    "--mpi-threads-disable": _NOT_NEEDED.format("ciranda does not use MPI"),
    "--no-mpi-threads-disable": _NOT_NEEDED.format("ciranda does not use MPI"),
    "--mpi-args": "start the ranks by mpirun itself, which then takes its own options",
    "--tcp": _NOT_NEEDED.format("ciranda does not use MPI, and hosts talk through TCP"),
    "--binding-args": "start the ranks by mpirun itself, which then takes its own options",
    "--num-nccl-streams": _NOT_NEEDED.format("each GPU has one stream of ciranda's"),
    "--thread-affinity": "start the ranks through taskset or numactl",
    "--gloo-timeout-seconds": _VARIABLE.format("CIRANDA_START_TIMEOUT_SECONDS=SECONDS"),
    "--log-level": _NOT_NEEDED.format("there is no log; --verbose says what the launcher does"),
    "--log-without-timestamp": _NOT_NEEDED.format("lines have no timestamp"),
    "--log-with-timestamp": _NOT_NEEDED.format("lines have no timestamp"),
    "--prefix-output-with-timestamp": "pipe the output through `ts`",
    "--prefix-timestamp": "pipe the output through `ts`",
}
"""By option; each the rest of a sentence that begins with its name."""
