"""The commands `ciranda`, `cirandarun`, `horovodrun` and `ciranda-ps`. Imports no torch."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import click

from ciranda import cmake_prefix_path
from ciranda.launch.cli.run import run_command
from ciranda.launch.errors import EXIT_NOT_FOUND, EXIT_SIGNAL_BASE, LaunchError
from ciranda.launch.remote import meeting
from ciranda.launch.run import local


def _print_cmake_prefix_path(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(cmake_prefix_path())
        context.exit()


class _Verbs(click.Group):
    """A group that imports the module of a lazy verb on use, so that `ciranda run` starts fast."""

    # Maps a verb to its module, the command in the module, and its line in `ciranda --help`.
    LAZY: Mapping[str, tuple[str, str, str]] = {
        "bench": (
            "ciranda.bench.cli",
            "bench_command",
            "Measure collectives, ciranda's beside those of other libraries.",
        ),
        "compare": (
            "ciranda.compare.cli",
            "compare_command",
            "Compare ways to train, as five published studies did.",
        ),
        "doctor": (
            "ciranda.doctor.cli",
            "doctor_command",
            "Find problems on this host, or between hosts.",
        ),
        "sweep": (
            "ciranda.sweep.cli",
            "sweep_command",
            "Search for the best parameters with many trainings, some in parallel.",
        ),
    }

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # where no verb catches it; click's own exit code would be 1
            click.echo(f"{ctx.command_path}: interrupted", err=True)
            return ctx.exit(EXIT_SIGNAL_BASE + signal.SIGINT)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.LAZY])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.LAZY:
            return super().get_command(ctx, cmd_name)
        module, command, _ = self.LAZY[cmd_name]
        found: click.Command = getattr(importlib.import_module(module), command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = {name: text for name, (_, _, text) in self.LAZY.items()}
        for name, command in self.commands.items():
            lines[name] = command.get_short_help_str(formatter.width)
        with formatter.section("Commands"):
            formatter.write_dl(sorted(lines.items()))


@click.group(name="ciranda", cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--cmake-prefix-path",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_cmake_prefix_path,
    help="Print the CMAKE_PREFIX_PATH for C++ programs, and exit.",
)
@click.version_option(package_name="ciranda", prog_name="ciranda", message="%(prog)s %(version)s")
def ciranda() -> None:
    """Data-parallel training for PyTorch."""


@click.command(name="key")
@click.argument("file")
@click.pass_context
def key_command(ctx: click.Context, file: str) -> None:
    """Write a new key into FILE, for `ciranda run --no-ssh`.

    Copy FILE to every host; nobody else may be able to read it. Use a key for only one job.
    """
    try:
        meeting.make_key_file(file)
    except LaunchError as error:
        click.echo(f"{ctx.command_path}: {error}", err=True)
        ctx.exit(error.exit_code)


ciranda.add_command(run_command)
ciranda.add_command(key_command)


def main() -> None:
    """Entry point of `ciranda` and `python -m ciranda`."""
    ciranda.main(prog_name="ciranda")


def cirandarun() -> None:
    """Entry point of `cirandarun`."""
    run_command.main(prog_name="cirandarun")


def as_horovodrun() -> None:
    """Entry point of `horovodrun`, where ranks can import ciranda as horovod too."""
    run_command.main(prog_name="horovodrun")


def as_server() -> None:
    """Entry point of `ciranda-ps`, a parameter server started by hand."""
    try:
        os.execv(local.SERVER_PROGRAM, [local.SERVER_PROGRAM, *sys.argv[1:]])  # noqa: S606 - no shell
    except OSError as error:
        click.echo(
            f"ciranda-ps: {local.SERVER_PROGRAM}: {error.strerror}; install ciranda anew", err=True
        )
        sys.exit(EXIT_NOT_FOUND)
