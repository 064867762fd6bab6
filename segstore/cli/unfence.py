"""`segstore unfence`: makes a demoted primary take appends again. On disk: the engine writes the store.
Threads: one.
"""

from __future__ import annotations

import click

import segstore
from segstore.cli.options import confirmed, no_bootstrap


@click.command()
@click.argument("directory", metavar="DIRECTORY", type=click.Path(exists=True, file_okay=False))
@click.option("--yes", "-y", is_flag=True, help="Ask nothing: you have made sure that no other node leads.")
@no_bootstrap
def unfence(directory: str, yes: bool) -> int:
    """Let the demoted primary in DIRECTORY lead again, if no other node leads.

    No process may have the directory open. Make sure first that the promoted node does not lead: if both
    lead, the records of one of them are truncated later. The store then has no standby.
    """
    from segstore.files import Files
    from segstore.standby.unfence import fence_of

    fence = fence_of(Files(), directory)
    question = (
        f"The store was told that node {fence.leader} leads from leader epoch {fence.leader_epoch} on. If it"
        " still leads, records are lost. Have you made sure that it does not?"
    )
    if not yes and not confirmed(question):
        return 1
    with segstore.unfence(directory) as store:
        count = len(store.topics())
        click.echo(f"{directory} leads, with {count} topic{'s' * (count != 1)}, and has no standby")
    return 0
