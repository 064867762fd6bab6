"""`segstore mirror`: mirrors topics of a Kafka cluster into a store, or topics of a store into a cluster,
until Ctrl-C, or with --once until all records of the start are mirrored. `segstore end-mirror`: makes the
mirror an ordinary store.

On disk: the engine writes the mirror's store. A store that is mirrored to a cluster is only read. Threads:
the main thread waits. The mirror has its own threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click import get_current_context
from click.core import ParameterSource

import segstore
from segstore.choices import CUT, ISOLATION_LEVELS, KEEP, MIRRORED, REPLACE
from segstore.cli.client_option import client_option
from segstore.cli.lifetime import Lifetime
from segstore.cli.logs import log_options, logged
from segstore.cli.options import STORE, http_option, no_bootstrap, print_http_address, store_given
from segstore.cli.output import progress_bar
from segstore.cli.signals import stopped_by_signals

if TYPE_CHECKING:
    from rich.progress import Progress

_LOOK_MS = 500


@click.command()
@click.argument("bootstrap", metavar="BOOTSTRAP", required=False)
@click.argument("directory", metavar="DIRECTORY", type=click.Path(file_okay=False), required=False)
@click.option(
    "--to",
    "target",
    metavar="BOOTSTRAP",
    help="In place of BOOTSTRAP and DIRECTORY: mirror topics of --store to this cluster, at equal offsets.",
)
@store_given(
    "With --to: directory of the store, which another process may write.", kind=click.Path(file_okay=False)
)
@click.option(
    "--topics",
    "-t",
    metavar="NAME",
    multiple=True,
    help="A topic, or a regular expression for whole names; may be repeated, and may have several, with"
    " commas between them. By default every topic that is not internal.",
)
@click.option(
    "--isolation-level",
    "--isolation",
    "isolation",
    type=click.Choice([*ISOLATION_LEVELS, *MIRRORED]),
    metavar=f"[{'|'.join(ISOLATION_LEVELS)}]",
    default=ISOLATION_LEVELS[0],
    show_default=True,
    help="How far is mirrored: up to the high watermark, or up to the last stable offset, so that no open"
    " transaction comes.",
)
@click.option("--once", is_flag=True, help="End when all is there that the source had at the start.")
@click.option(
    "--recreated",
    type=click.Choice([KEEP, REPLACE]),
    default=KEEP,
    show_default=True,
    help="What becomes of the mirror of a topic that was deleted at the source and made anew.",
)
@http_option
@client_option("A setting of the client or of the mirror, such as security.protocol=SSL; may be repeated.")
@log_options
def mirror(
    bootstrap: str | None,
    directory: str | None,
    target: str | None,
    path: str | None,
    topics: tuple[str, ...],
    isolation: str,
    once: bool,
    recreated: str,
    http: str | None,
    config: dict[str, str],
    log_format: str,
    log_level: str,
) -> None:
    """Mirror topics of the Kafka cluster at BOOTSTRAP (HOST:PORT, with commas between several) into
    DIRECTORY, until Ctrl-C.

    Bytes, offsets, leader epochs, topic ids, transactions, settings and committed offsets of groups are the
    same in the mirror. The client needs the rights of an ordinary consumer. DIRECTORY is a store, which can
    be read during the mirroring. Called again, the command continues where it stopped.

    With --to BOOTSTRAP --store PATH, topics of a store are produced to a cluster, so that each record has the
    same offset in the cluster as in the store. Topics for which that is impossible are refused: compacted
    topics, topics with transactions, and topics that have other records in the cluster.
    """
    from segstore.replica_fetcher.topic_filter import ALL

    chosen = [part for text in topics for part in text.split(",") if part] or [ALL]
    if target is not None:
        _check_alone(bootstrap, path)
        with logged(log_format, log_level):
            _mirror_to(str(path), target, chosen, once, config)
    elif bootstrap is None or directory is None:
        raise click.UsageError(f"Missing argument '{'BOOTSTRAP' if bootstrap is None else 'DIRECTORY'}'.")
    else:
        with logged(log_format, log_level):
            _mirror_from(bootstrap, directory, chosen, isolation, once, recreated, config, http)


def _check_alone(bootstrap: str | None, path: str | None) -> None:
    """Raise UsageError if an option is given that can't be combined with --to, or if --store is missing."""
    if bootstrap is not None:
        raise click.UsageError(
            "--to mirrors --store PATH to a cluster: BOOTSTRAP and DIRECTORY are not given."
        )
    given = get_current_context().get_parameter_source
    for name, option in (("isolation", "isolation-level"), ("recreated", "recreated"), ("http", "http")):
        if given(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{option} is for mirrors of a cluster, and not for --to.")
    if path is None:
        raise click.UsageError(f"Which store is mirrored? Give --store PATH (or {STORE}).")


def _mirror_to(path: str, target: str, topics: list[str], once: bool, config: dict[str, str]) -> None:
    from segstore.cli.places.of_store import open_reading

    with (
        stopped_by_signals(unfinished=once),
        Lifetime(path) as life,
        open_reading(path) as store,
        segstore.mirror_to(store, target, topics, config=config) as running,
        life.until_stopped(),
    ):
        life.started(f"is mirrored to {target}")
        click.echo(f"{path} is mirrored to {target}")
        with progress_bar(0, "mirror", "offsets") as bar:
            while not (running.wait_caught_up(_LOOK_MS) if once else running.wait(_LOOK_MS)):
                _show_to(bar, running)
        problems = running.problems  # Each problem was logged already.
        if once:
            partitions = [each for each in running.partitions() if not each.refused]
            offsets = sum(each.target_end_offset - each.start_offset for each in partitions)
            click.echo(f"{target} has {len(partitions)} partitions, {offsets:,} offsets")
            if problems:
                get_current_context().exit(1)


def _show_to(bar: Progress, running: segstore.MirrorTo) -> None:
    known = [each for each in running.partitions() if each.target_end_offset >= 0]
    total = sum(each.end_offset - each.start_offset for each in known)
    lag = sum(each.lag.records for each in known)
    waits = running.error or next((each.error for each in running.partitions() if each.error), None)
    bar.update(
        bar.task_ids[0],
        total=total,
        completed=max(total - lag, 0),
        description=f"mirror, {lag:,} records behind" + (f": {waits}" if waits else ""),
    )


def _mirror_from(
    bootstrap: str,
    directory: str,
    topics: list[str],
    isolation: str,
    once: bool,
    recreated: str,
    config: dict[str, str],
    http: str | None,
) -> None:
    with (
        stopped_by_signals(unfinished=once),
        Lifetime(directory) as life,
        segstore.mirror(
            bootstrap, directory, topics, isolation=isolation, recreated=recreated, config=config, http=http
        ) as running,
        life.until_stopped(),
    ):
        life.started(f"mirrors {bootstrap}")
        click.echo(f"{directory} mirrors {bootstrap}")
        print_http_address(running.http)
        with progress_bar(0, "mirror", "offsets") as bar:
            while not (running.wait_caught_up(_LOOK_MS) if once else running.wait(_LOOK_MS)):
                _show(bar, running)
        if once:
            click.echo(_progress(running))


def _show(bar: Progress, running: segstore.Mirror) -> None:
    known = [each for each in running.partitions() if each.source_end_offset >= 0]
    total = sum(max(each.source_end_offset, each.end_offset) - each.start_offset for each in known)
    done = sum(each.end_offset - each.start_offset for each in known)
    lag = sum(each.lag.records for each in known)
    waits = running.error or next((each.error for each in known if each.error), None)
    bar.update(
        bar.task_ids[0],
        total=total,
        completed=done,
        description=f"mirror, {lag:,} records behind" + (f": {waits}" if waits else ""),
    )


def _progress(running: segstore.Mirror) -> str:
    partitions = running.partitions()
    offsets = sum(each.end_offset - each.start_offset for each in partitions)
    topics = len({each.topic for each in partitions})
    return f"mirrored {topics} topics, {len(partitions)} partitions, {offsets:,} offsets"


@click.command()
@click.argument("directory", metavar="DIRECTORY", type=click.Path(file_okay=False))
@click.option(
    "--open-transactions",
    type=click.Choice([CUT, KEEP]),
    default=CUT,
    show_default=True,
    help="What becomes of transactions that are open, which nobody can end any more. cut: each log ends"
    " before them, and copies of what is cut are kept; keep: their records stay.",
)
@no_bootstrap
def end_mirror(directory: str, open_transactions: str) -> None:
    """Turn the mirror in DIRECTORY into an ordinary store, under new leader epochs."""
    ended = segstore.end_mirror(directory, open_transactions)
    for each in ended:
        if each.cut:
            kept = f"; copies: {', '.join(each.kept)}" if each.kept else ""
            click.echo(f"{each.topic}-{each.partition}: {each.cut:,} offsets were cut{kept}")
    click.echo(f"{directory} is an ordinary store with {len(ended)} mirrored partitions")
