"""Reads the YAML file of horovodrun's --config-file. Its knobs are defaults of options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ciranda.launch.errors import LaunchError

if TYPE_CHECKING:
    from ciranda.launch.horovod.horovodrun import Flag

# section -> knob -> parameter of the option
_SECTIONS: dict[str, dict[str, str]] = {
    "params": {
        "fusion_threshold_mb": "fusion_threshold_mb",
        "cycle_time_ms": "cycle_time_ms",
        "cache_capacity": "cache_capacity",
        "hierarchical_allreduce": "hierarchical_allreduce",
        "hierarchical_allgather": "hierarchical_allgather",
        "torus_allreduce": "torus_allreduce",
    },
    "autotune": {
        "enabled": "autotune",
        "log_file": "autotune_log_file",
        "warmup_samples": "autotune_warmup_samples",
        "steps_per_sample": "autotune_steps_per_sample",
        "bayes_opt_max_samples": "autotune_bayes_opt_max_samples",
        "gaussian_process_noise": "autotune_gaussian_process_noise",
    },
    "timeline": {"filename": "timeline_filename", "mark_cycles": "timeline_mark_cycles"},
    "stall_check": {
        "enabled": "stall_check",
        "warning_time_seconds": "stall_check_warning_time_seconds",
        "shutdown_time_seconds": "stall_check_shutdown_time_seconds",
    },
    "library_options": {
        "mpi_threads_disable": "mpi_threads_disable",
        "num_nccl_streams": "num_nccl_streams",
        "thread_affinity": "thread_affinity",
        "gloo_timeout_seconds": "gloo_timeout_seconds",
    },
    "logging": {"level": "log_level", "with_timestamp": "log_with_timestamp"},
}


def read(
    name: str, flags: Mapping[str, Flag], answers: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Returns the values by parameter, and a line for each knob that horovodrun does not know.

    `flags` holds the supported options by parameter, `answers` the answers to refused options.
    Raises LaunchError for a refused knob and for a file that cannot be read or is invalid.
    """
    values: dict[str, Any] = {}
    notes: list[str] = []
    for section, content in _load(name).items():
        if section == "controller":
            if content == "mpi":
                raise LaunchError(f"{name}: controller: {answers['--mpi']}")
            continue
        if section not in _SECTIONS or not isinstance(content, dict | None):
            notes.append(f"{name}: '{section}' is not a section of knobs and is ignored")
            continue
        for knob, value in (content or {}).items():
            where = f"{name}: {section}.{knob}"
            if knob not in _SECTIONS[section]:
                notes.append(f"{where} is not a knob of horovodrun and is ignored")
                continue
            parameter = _SECTIONS[section][knob]
            answer = answers.get(f"--{parameter.replace('_', '-')}")
            if answer is not None and value is not None and value is not False:
                raise LaunchError(f"{where}: {answer}")
            if parameter in flags and value is not None:
                values |= _value(flags[parameter], value, where)
    return values, notes


def _load(name: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise LaunchError(
            f"{name}: reading it needs PyYAML, which is not installed; pip install PyYAML, or "
            "give the options on the command line"
        ) from None
    try:
        with open(name, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except OSError as error:
        raise LaunchError(f"{name}: {error.strerror}") from error
    except RecursionError:
        raise LaunchError(f"{name}: it is nested too deep for a file of knobs") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise LaunchError(f"{name}{line}: this is not YAML") from error
    if not isinstance(content, dict | None):
        raise LaunchError(f"{name}: expected sections of knobs, such as 'params:'")
    return content or {}


def _value(flag: Flag, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, str | int | float):
        raise LaunchError(f"{where}: expected one value, not a {type(value).__name__}")
    if flag.value is None:
        if not isinstance(value, bool):
            raise LaunchError(f"{where}: expected true or false, not {value!r}")
        if flag.parameter == "stall_check":  # stall checks are on by default
            return {"no_stall_check": not value}
        return {flag.parameter: value}
    try:
        return {flag.parameter: flag.value.convert(value, None, None)}
    except click.BadParameter as error:
        raise LaunchError(f"{where}: {error.message.rstrip('.')}") from None
