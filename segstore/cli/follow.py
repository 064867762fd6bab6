"""`segstore follow`: keeps a directory as the hot standby of a primary, until it is stopped. `segstore
promote`: makes the standby the primary. On disk: the engine writes the store. Threads: the main thread waits.
The standby has its own threads.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

import segstore
from segstore.choices import ASYNC, DEAD, REACHABLE, SYNC
from segstore.cli.client_option import client_option
from segstore.cli.lifetime import Lifetime
from segstore.cli.logs import log_options, logged
from segstore.cli.options import confirmed, http_option, no_bootstrap, print_http_address
from segstore.cli.output import size_text, status_line
from segstore.cli.signals import stopped_by_signals
from segstore.errors import StoreLockedError

if TYPE_CHECKING:
    from segstore.replica_fetcher.source_end import Lag

_LOOK_MS = 500
_LETTING_GO = 30.0
_LOST = "Records that only the old primary has are not in this standby. Go on?"
_CLIENT = "A setting of the client, such as security.protocol=SSL; may be repeated."


@click.command()
@click.argument("source", metavar="HOST:PORT")
@click.argument("directory", metavar="DIRECTORY", type=click.Path(file_okay=False))
@click.option(
    "--mode",
    type=click.Choice([ASYNC, SYNC]),
    help="sync: acks=all of the primary waits for this standby; async: the primary never waits. By default as"
    " before, and async for a new standby.",
)
@click.option(
    "--topics", "-t", metavar="NAME", multiple=True, help="A topic, or a regular expression; may be repeated."
)
@click.option("--once", is_flag=True, help="End when all is there that the primary had at the start.")
@http_option
@client_option(_CLIENT)
@log_options
def follow(
    source: str,
    directory: str,
    mode: str | None,
    topics: tuple[str, ...],
    once: bool,
    http: str | None,
    config: dict[str, str],
    log_format: str,
    log_level: str,
) -> None:
    """Keep DIRECTORY as the hot standby of the primary at HOST:PORT, until Ctrl-C.

    DIRECTORY is new, or it has followed before, or it belongs to an old primary that returns. It can be read
    while it follows.
    """
    from segstore.replica_fetcher.topic_filter import ALL

    mode = mode or _mode_of(directory)
    chosen = [part for text in topics for part in text.split(",") if part] or ALL
    with (
        logged(log_format, log_level),
        stopped_by_signals(unfinished=once),
        Lifetime(directory) as life,
        segstore.follow(source, directory, mode=mode, topics=chosen, config=config, http=http) as running,
        life.until_stopped(),
    ):
        life.started(f"follows {source} ({mode})")
        click.echo(f"{directory} follows {source} ({mode})")
        print_http_address(running.http)
        with status_line(f"{directory} follows") as line:
            printed: set[str] = set()
            while not _is_over(running, once):
                line.update(line.task_ids[0], description=_shown(running.total_lag(), running.error))
                _print_excess(directory, printed)
        _print_excess(directory, printed)
        if running.wait(0):
            click.echo(f"{directory} follows no more: another process has asked for it")


def _mode_of(directory: str) -> str:
    from segstore.files import Files
    from segstore.storage.meta.role import ROLE, STANDBY

    held = ROLE.read(Files(), directory)
    return held.mode if held is not None and held.kind == STANDBY else ASYNC


def _is_over(running: segstore.Standby, once: bool) -> bool:
    if once and running.wait_caught_up(_LOOK_MS):
        return True
    return running.wait(0 if once else _LOOK_MS)


def _print_excess(directory: str, printed: set[str]) -> None:
    """Print the records that were truncated. The records are read from the files that have copies of them.
    Files whose paths are in `printed` are skipped, and the path of each file that is printed is added to
    `printed`.
    """
    from segstore.files import Files
    from segstore.standby.divergent_records import copies, read_copy

    for path in copies(Files(), directory):
        if path in printed:
            continue
        printed.add(path)
        for cut in read_copy(Files(), path):
            click.echo(
                f"cut: {cut.topic}-{cut.partition} offset {cut.offset} leader epoch {cut.leader_epoch}"
                f" key {cut.key!r} value {cut.value!r} ({cut.path})"
            )


def _shown(lag: Lag, error: Exception | None) -> str:
    behind = f"{lag.records:,} records, {size_text(lag.bytes)}, {lag.ms:,} ms behind" if lag.records else ""
    return f"{error}" if error is not None else behind or "all is here that the primary has"


@click.command()
@click.argument("directory", metavar="DIRECTORY", type=click.Path(exists=True, file_okay=False))
@click.option(
    "--old",
    type=click.Choice([REACHABLE, DEAD]),
    required=True,
    help="reachable: the primary is fenced, and hands over all it has; dead: you make sure that it has"
    " ended.",
)
@click.option("--reason", default="", metavar="TEXT", help="What is noted of the promotion.")
@click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
@client_option(_CLIENT)
@no_bootstrap
def promote(directory: str, old: str, reason: str, yes: bool, config: dict[str, str]) -> int:
    """Let the standby in DIRECTORY take its primary's place. A running `segstore follow` of DIRECTORY
    stops.
    """
    from segstore.files import Files
    from segstore.standby.promotion import ask_to_let_go, standby_role

    standby_role(Files(), directory)
    if old == DEAD and not yes and not confirmed(_LOST):
        return 1
    began = time.monotonic()
    while True:
        try:
            store = segstore.promote(directory, old, reason, config=config)
            break
        except StoreLockedError:
            if time.monotonic() - began > _LETTING_GO:
                raise
            ask_to_let_go(Files(), directory)
            time.sleep(0.05)
    with store:
        count = len(store.topics())
        click.echo(f"{directory} leads, with {count} topic{'s' * (count != 1)}")
    return 0
