"""Checks that `ciranda run` accepts the options of the trials, before any trial runs."""

from __future__ import annotations

import os

import click
from click.core import ParameterSource

from ciranda.launch.errors import LaunchError
from ciranda.launch.run import local
from ciranda.sweep.settings import SweepSettings
from ciranda.sweep.space import has_placeholder

_OURS = ("np", "hosts", "hostfile", "no_ssh", "ps_hosts", "log_dir", "dry_run")


def check_launch(settings: SweepSettings) -> None:
    _check_options(settings)
    if not has_placeholder(settings.command[0]):
        local.resolve_command(settings.command, os.get_exec_path())


def own_folders(settings: SweepSettings, number: int) -> list[str]:
    """Returns the options of `ciranda run` that follow the sweep's.

    They give each trial a subfolder of the folders that only one job can use.
    """
    from ciranda.launch.cli.run import run_command

    words = [*settings.run_options, "--", *settings.command]
    given = run_command.make_context("ciranda run", words).params
    folders = {"--ps-dir": given["ps_dir"], "--checkpoint-dir": given["checkpoint_dir"]}
    return [
        word
        for option, folder in folders.items()
        if folder
        for word in (option, os.path.join(folder, f"trial-{number}"))
    ]


def _check_options(settings: SweepSettings) -> None:
    from ciranda.launch.cli.run import run_command

    words = [*settings.run_options, "--", *settings.command]
    try:
        context = run_command.make_context("ciranda run", words)
    except click.ClickException as error:
        raise LaunchError(f"--run: {error.format_message()}") from None
    except click.exceptions.Exit:
        raise LaunchError("--run: an option that prints something starts no trial") from None
    if tuple(context.params["command"]) != tuple(settings.command):
        raise LaunchError("--run takes options only; the command stands behind --")
    for option in run_command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name == "assign":  # its value would be printed and kept
            raise LaunchError("--run: -x is not for trials; what is set for the sweep is for them")
        if given and name in _OURS:
            raise LaunchError(
                f"--run: {option.opts[0]} is not for trials; they all run on this host, and the "
                "sweep says how many ranks each has and where logs go"
            )
