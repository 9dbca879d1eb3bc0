"""The verb `ciranda bench`: options in, tables out. Imports neither torch nor matplotlib."""

from __future__ import annotations

import click

from ciranda.bench.case import DTYPE_BYTES, OPS, REDOPS
from ciranda.bench.settings import Settings, cases_named, sides_named
from ciranda.bench.sides_here import BACKENDS, PEERS
from ciranda.launch.errors import LaunchError
from ciranda.launch.plan.hosts import LOCAL_RANKS_MAX

_EXAMPLES = """\b
Examples:
  ciranda bench -np 2
  ciranda bench --two-hosts --peers c10d
  ciranda bench --op all --max-bytes 1M --json base.json
  ciranda bench --op all --max-bytes 1M --compare base.json --fail-below 0.9
"""


class _Bench(click.Command):
    """Keeps the arguments as the user typed them, for the record."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = [*ctx.command_path.split(), *args]
        return super().parse_args(ctx, args)


@click.command(
    cls=_Bench,
    name="bench",
    epilog=_EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "-np", "--np", "--num-proc", "np", type=int, default=2, metavar="N", help="Number of ranks [2]."
)
@click.option(
    "--op",
    default="allreduce",
    metavar="OP,...",
    help=f"Collectives: {', '.join(OPS)}, or all [allreduce].",
)
@click.option("--min-bytes", default="4", metavar="SIZE", help="Smallest size [4].")
@click.option("--max-bytes", default="64M", metavar="SIZE", help="Largest size [64M].")
@click.option(
    "--factor", type=int, default=4, metavar="N", help="Factor between one size and the next [4]."
)
@click.option(
    "--dtype",
    default="float32",
    metavar="T,...",
    help=f"Dtypes: {', '.join(DTYPE_BYTES)} [float32].",
)
@click.option(
    "--redop", default="sum", metavar="R,...", help=f"Reductions: {', '.join(REDOPS)} [sum]."
)
@click.option(
    "--backends", metavar="B,...", help="Backends of ciranda: shm, ring, gloo, nccl, none [all]."
)
@click.option(
    "--peers",
    metavar="P,...",
    help="Other libraries: c10d, mpi, memcpy, none [all that are installed].",
)
@click.option(
    "--rounds",
    type=int,
    default=5,
    metavar="N",
    help="How often each library is measured, in turns [5].",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    help="Device of the tensors [cpu].",
)
@click.option(
    "--two-hosts",
    is_flag=True,
    help="Measure between two network namespaces of this host; needs root.",
)
@click.option("--csv", "csv_path", metavar="FILE", help="Write the tables as CSV.")
@click.option(
    "--json", "json_path", metavar="FILE", help="Write all results, for a later --compare."
)
@click.option("--png", metavar="FILE", help="Draw the bus bandwidths; needs matplotlib.")
@click.option(
    "--compare",
    metavar="FILE",
    help="Print ratios to the speeds that an earlier run wrote with --json.",
)
@click.option(
    "--fail-below",
    type=float,
    metavar="RATIO",
    help="With --compare: exit with 1 if a backend of ciranda is below RATIO by more than noise.",
)
@click.option("-H", "--hosts", hidden=True)
@click.pass_context
def bench_command(
    ctx: click.Context,
    /,
    np: int,
    op: str,
    min_bytes: str,
    max_bytes: str,
    factor: int,
    dtype: str,
    redop: str,
    backends: str | None,
    peers: str | None,
    rounds: int,
    device: str,
    two_hosts: bool,
    csv_path: str | None,
    json_path: str | None,
    png: str | None,
    compare: str | None,
    fail_below: float | None,
    hosts: str | None,
) -> None:
    """Measure collectives on this host, and print them as nccl-tests does.

    Each backend of ciranda stands beside torch.distributed, mpi4py (if it is installed) and a plain
    copy. Every result is verified.
    """
    from ciranda.bench import session  # not needed for --help

    try:
        if hosts is not None:
            raise LaunchError(
                "-H: bench measures this host, or with --two-hosts two namespaces of this host; "
                "to measure other hosts, run its worker by `ciranda run -H`, as docs/bench.md "
                "shows"
            )
        if not 1 <= np <= LOCAL_RANKS_MAX:
            raise LaunchError(f"-np must be 1 to {LOCAL_RANKS_MAX} ranks, not {np}")
        if two_hosts and np < 2:
            raise LaunchError("--two-hosts needs -np 2 or more, a rank for each host")
        if two_hosts and device != "cpu":
            raise LaunchError("--two-hosts measures with --device cpu only")
        if rounds < 1:
            raise LaunchError(f"--rounds must be at least 1, not {rounds}")
        if fail_below is not None and compare is None:
            raise LaunchError("--fail-below needs --compare, which names the run to compare with")
        if fail_below is not None and not fail_below > 0:
            raise LaunchError(
                f"--fail-below must be a ratio above 0, such as 0.9, not {fail_below:g}"
            )
        settings = Settings(
            ranks=np,
            cases=cases_named(op, min_bytes, max_bytes, factor, dtype, redop, np),
            backends=sides_named(backends, "--backends", BACKENDS[device]),
            peers=sides_named(peers, "--peers", PEERS),
            rounds=rounds,
            device=device,
            hosts=2 if two_hosts else 1,
            csv=csv_path,
            json=json_path,
            png=png,
            compare=compare,
            fail_below=fail_below,
        )
        code = session.run(settings, ctx.obj)
    except LaunchError as error:
        for line in str(error).splitlines():
            click.echo(f"{ctx.command_path}: {line}", err=True)
        code = error.exit_code
    ctx.exit(code)
