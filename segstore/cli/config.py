"""`segstore config`: checks files of settings. On disk: these files are only read. Threads: one."""

from __future__ import annotations

import click

from segstore.cli.help import CommandGroup


@click.command()
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
def check(path: str) -> int:
    """Check the settings in FILE, and the files that it names, as `segstore serve --config FILE` does.

    Each problem is printed as a line on standard error, and the exit status is 2. If there is none, prints
    the store that would be served, its addresses and their security, and the settings without effect. Nothing
    is opened or created.
    """
    from segstore.cli.app import one_line
    from segstore.cli.config_check import problems, summary
    from segstore.cli.config_file import read_config

    try:
        file = read_config(path)
    except OSError as error:
        click.echo(one_line(error), err=True)
        return 2
    found = problems(file)
    for each in found:
        click.echo(file.located(each), err=True)
    if found:
        return 2
    for line in summary(file):
        click.echo(line)
    return 0


@click.group(cls=CommandGroup, no_args_is_help=False)
def config() -> None:
    """Judge files of settings for `segstore serve --config`."""


config.add_command(check)
