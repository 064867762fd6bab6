"""`segstore bench`: measurements of why a log is fast. On disk: through the measurements, in a directory of
their own; results where the user wants them. Threads: one.
"""

from __future__ import annotations

import rich_click as click

from segstore.bench.command_report import report
from segstore.bench.command_study import run_study
from segstore.bench.command_zero_copy import compare, zero_copy
from segstore.cli.groups import InOrder
from segstore.cli.signals import ended_by_signals


@click.group(cls=InOrder, invoke_without_command=True)
@click.pass_context
def bench(ctx: click.Context) -> None:
    """Measure why a log is fast, on this machine.

    Everything is measured several times and by turns; one thing is called better than another only where
    their intervals lie apart. Whatever else the machine does meanwhile makes the figures worse.
    """
    ctx.with_resource(ended_by_signals())
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for command in (zero_copy, run_study, report, compare):
    bench.add_command(command)
