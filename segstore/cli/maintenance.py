"""The maintenance commands of a store: `segstore check`, `copy`, `sweep`, `upgrade`, `stats` and `quotas`.

On disk: `check` without --repair, and `stats`, only read. The other commands write through the engine.
Threads: one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

import segstore
from segstore.choices import DEFAULT
from segstore.cli.completion import topic_names
from segstore.cli.options import (
    config_given,
    json_option,
    no_bootstrap,
    store_given,
    store_option,
)
from segstore.cli.output import (
    add_row,
    console,
    counted,
    is_internal,
    own_last,
    print_json,
    progress_bar,
    size_text,
    table,
    time_text,
)

if TYPE_CHECKING:
    from segstore.storage.meta.client_quotas import Limits
    from segstore.storage.repair import Repaired
    from segstore.storage.store.stats import PartitionStats
    from segstore.storage.store.sweeper import Swept
    from segstore.storage.store.upgrader import Upgraded

R = TypeVar("R")


@click.command()
@click.argument("given", metavar="[PATH]", required=False, type=click.Path(file_okay=False))
@store_given("The same as PATH.")
@no_bootstrap
@click.option(
    "--repair", is_flag=True, help="Repair what can be repaired; the store must have no other writer."
)
@click.option(
    "--quarantine",
    is_flag=True,
    help="With --repair: also move bytes that are no batch out of the logs, to .segstore/quarantine.",
)
@json_option
def check(given: str | None, path: str | None, repair: bool, quarantine: bool, as_json: bool) -> int:
    """Check the bytes, indexes, checkpoints and names of a store, which may be in use.

    Prints each finding as a line. The exit status is 1 if there are any.

    With --repair, the recovery after a crash is completed, and indexes, producer snapshots and checkpoints
    are rebuilt from the logs. Each repair is printed, then each remaining finding. Logs are changed only with
    --quarantine: an empty batch replaces the damaged bytes and their offsets, so that readers can continue
    after it.
    """
    from segstore.cli.places.of_store import check_there

    root = given or path
    if root is None:
        raise click.UsageError("Which store? Give its PATH, or --store, or set SEGSTORE_PATH.")
    if quarantine and not repair:
        raise click.UsageError("--quarantine goes with --repair.")
    check_there(root)
    done = _repair(root, quarantine) if repair else []
    size, findings = run_check(root)
    rows: list[Repaired | segstore.Finding] = [*done, *findings]
    for row in rows:
        if as_json:
            print_json(row._asdict())
        else:
            click.echo(str(row))
    found = f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "sound"
    repaired = f"{len(done)} repaired, " if repair else ""
    in_logs = repair and not quarantine and any(each.path.endswith(".log") for each in findings)
    advice = "; logs are changed with --repair --quarantine only" if in_logs else ""
    click.echo(f"{root}: {repaired}{found}, {size_text(size)} of log checked{advice}", err=True)
    return int(bool(findings))


def _repair(root: str, quarantine: bool) -> list[Repaired]:
    from segstore.storage.repair import repair as run_repair

    _, done = _watched(root, "repairing", partial(run_repair, quarantine=quarantine))
    return done


def run_check(root: str) -> tuple[int, list[segstore.Finding]]:
    """Check a store, and show a progress bar if standard error is a terminal. Return (number of checked bytes
    of logs, findings).
    """
    return _watched(root, "checking", segstore.check)


def _watched(root: str, what: str, run: Callable[..., list[R]]) -> tuple[int, list[R]]:
    checked, total = 0, all_log_bytes(root)
    with progress_bar(total, f"{what} {root}") as bar:

        def advance(size: int) -> None:
            nonlocal checked
            checked += size
            # A repair may read a log more than once, so the total may grow.
            bar.update(bar.task_ids[0], completed=checked, total=max(total, checked))

        results = run(root, progress=advance)
    return checked, results


def all_log_bytes(root: str) -> int:
    """Return the number of bytes in all logs of a store."""
    from segstore.cli.places.disk_use import log_bytes
    from segstore.cli.places.of_store import open_reading

    with open_reading(root) as store:
        return sum(
            log_bytes(root, info.name, n) for info in store.topics().values() for n in info.partition_ids
        )


# --- copy --------------------------------------------------------------------------------------

# `segstore copy` makes a consistent copy of a store. The store may be in use.


@click.command()
@click.argument("target", metavar="TARGET", type=click.Path(file_okay=False))
@store_option
def copy(target: str, path: str) -> None:
    """Copy the store to TARGET, which must not exist yet. Another process may be writing the store.

    The copy has all partitions as they were at one moment. If the file system supports it, the copy shares
    disk blocks with the original. The copy is an independent store that was cleanly closed.
    """
    from segstore.cli.places.of_store import open_reading

    open_reading(path).close()
    with progress_bar(all_log_bytes(path), f"copying {path}") as bar:
        made = segstore.copy(path, target, progress=lambda size: bar.advance(bar.task_ids[0], size))
    click.echo(
        f"{target}: {counted(made.partitions, 'partition')}, {counted(made.segments, 'segment')},"
        f" {size_text(made.bytes)} of log",
        err=True,
    )


# --- sweep -------------------------------------------------------------------------------------

# `segstore sweep` runs retention and compaction now.


@click.command()
@store_option
@json_option
def sweep(path: str, as_json: bool) -> int:
    """Run retention and compaction now, as each topic's settings ask for. An open store does this in the
    background.

    If a partition could not be swept, the other partitions are still swept, and the exit status is 1.
    """
    from segstore.cli.places.of_store import open_reading

    # This raises an error if there is no store. The call after it would create one.
    open_reading(path).close()
    with segstore.open(path) as store:
        swept = store.sweep()
    if as_json:
        for done in swept:
            print_json(done._asdict())
    elif swept:
        _print(swept)
    else:
        click.echo("nothing to sweep", err=True)
    return int(any(done.error for done in swept))


def _print(swept: tuple[Swept, ...]) -> None:
    right = ("deleted segments", "deleted", "compacted records", "compacted")
    made = table("partition", *right, "error", right=right)
    for done in swept:
        name = f"{done.topic}-{done.partition}"
        deleted, compacted = size_text(done.deleted_bytes), size_text(done.compacted_bytes)
        add_row(made, name, done.deleted_segments, deleted, done.compacted_records, compacted, done.error)
    console().print(made)


# --- upgrade -----------------------------------------------------------------------------------

# `segstore upgrade` converts messages of magic 0 and 1.


@click.command()
@click.argument("topic", metavar="[TOPIC]", required=False, shell_complete=topic_names)
@store_option
@json_option
def upgrade(topic: str | None, path: str, as_json: bool) -> int:
    """Convert messages that Kafka wrote before 0.11 (magic 0 and 1) to record batches of magic 2.

    Offsets, keys, values, times and codecs stay the same. Without TOPIC all topics are upgraded. If a
    partition could not be upgraded, the other partitions are still upgraded, and the exit status is 1.
    """
    from segstore.cli.places.disk_use import log_bytes
    from segstore.cli.places.of_store import open_reading
    from segstore.storage.meta.topics import find_topic

    with open_reading(path) as store:
        known = store.topics()
        sound = [info for info in known.values() if info.error is None]
        topics = sound if topic is None else [find_topic(known, topic)]
    keys = [(info.name, number) for info in topics for number in info.partition_ids]
    sizes = [log_bytes(path, *key) for key in keys]
    done: list[Upgraded] = []
    with segstore.open(path) as store, progress_bar(sum(sizes), f"upgrading {path}") as bar:
        for key, size in zip(keys, sizes, strict=True):
            done += store.upgrade(*key)
            bar.advance(bar.task_ids[0], size)
    if as_json:
        for row in done:
            print_json(row._asdict())
    elif done:
        _upgraded_print(done)
    else:
        click.echo("nothing to upgrade", err=True)
    return int(any(row.error for row in done))


def _upgraded_print(done: list[Upgraded]) -> None:
    right = ("segments", "records", "before", "after")
    made = table("partition", *right, "error", right=right)
    for row in done:
        before, after = size_text(row.bytes_before), size_text(row.bytes_after)
        add_row(made, f"{row.topic}-{row.partition}", row.segments, row.records, before, after, row.error)
    console().print(made)


# --- stats -------------------------------------------------------------------------------------

# `segstore stats` prints the statistics of partitions. The store is only read.


@click.command()
@click.argument("names", metavar="[TOPIC]...", nargs=-1, shell_complete=topic_names)
@store_option
@json_option
@click.option("--prometheus", is_flag=True, help="Print all metrics in Prometheus' text format.")
def stats(names: tuple[str, ...], path: str, as_json: bool, prometheus: bool) -> None:
    """Show segments, bytes, records, offsets, dirty ratio, last sweep and errors of every partition.

    The dirty ratio is the fraction of a compacted topic's log that compaction has not reached yet.
    """
    from segstore.cli.places.of_store import open_reading
    from segstore.storage.meta.topics import find_topic

    if prometheus and (names or as_json):
        raise click.UsageError("--prometheus gives all metrics: no TOPIC and no --json with it.")
    with open_reading(path) as store:
        if prometheus:
            click.echo(store.metrics_text(), nl=False)
            return
        for name in names:
            find_topic(store.topics(), name)
        rows = [row for row in store.stats() if not names or row.topic in names]
    if as_json:
        for row in rows:
            print_json(row._asdict())
    elif rows:
        _stats_print(rows)
    else:
        click.echo(f"no topics in {path}", err=True)


def _stats_print(rows: list[PartitionStats]) -> None:
    right = ("segments", "bytes", "records", "start", "end", "dirty")
    made = table("partition", *right, "last sweep", "error", right=right)
    shown, folded = _folded(rows)
    for row in own_last(shown, lambda row: row.topic):
        dirty = "" if row.dirty_ratio is None else f"{row.dirty_ratio:.0%}"
        swept = "" if row.swept_ms < 0 else time_text(row.swept_ms // 1000 * 1000)
        size = size_text(row.bytes)
        offsets = row.start_offset, row.end_offset
        name = f"{row.topic}-{row.partition}"
        add_row(made, name, row.segments, size, row.records, *offsets, dirty, swept, row.error)
    for topic, count in folded.items():
        add_row(made, f"{topic}: {counted(count, 'empty partition')}", *[None] * 8)
    console().print(made)


def _folded(rows: list[PartitionStats]) -> tuple[list[PartitionStats], dict[str, int]]:
    """Return (rows that are printed one by one, number of folded rows by topic). A row is folded if its
    partition belongs to an internal topic, and never had a record or an error. All folded rows of a topic are
    printed as one row.
    """
    empty = [row for row in rows if is_internal(row.topic) and not (row.end_offset or row.error)]
    counts = Counter(row.topic for row in empty)
    return [row for row in rows if row not in empty], dict(counts)


# --- quotas ------------------------------------------------------------------------------------

# `segstore quotas` shows and changes the byte rates of users and clients.


@click.command()
@click.argument("client", metavar="[CLIENT_ID]", required=False)
@click.option(
    "--default",
    "of_default",
    is_flag=True,
    help="Show or change the rates of all clients that have none of their own.",
)
@click.option(
    "--user",
    metavar="NAME",
    help="Show or change the rates of a user who authenticates to `segstore serve`, or of this user's "
    f"CLIENT_ID; {DEFAULT}: of all users that have none of their own.",
)
@config_given("A rate, such as producer_byte_rate=1MiB, in bytes a second; may be repeated.")
@click.option(
    "--delete-config", "-d", "forget", metavar="NAME", multiple=True, help="Remove this rate of the client."
)
@store_option
@json_option
def quotas(
    client: str | None,
    of_default: bool,
    user: str | None,
    config: dict[str, str],
    forget: tuple[str, ...],
    path: str,
    as_json: bool,
) -> None:
    """Show the byte rates of clients, or change the rates of one client: producer_byte_rate and
    consumer_byte_rate, in bytes a second.

    `segstore quotas app -c producer_byte_rate=1048576` limits all producers with client_id "app" together to
    1 MiB of stored batches a second.
    """
    from segstore.cli.places.of_store import open_reading
    from segstore.coordinator.quotas import Entity
    from segstore.coordinator.quotas import quotas as quotas_of

    if of_default and client is not None:
        raise click.UsageError("Give a CLIENT_ID or --default, not both.")
    entity = Entity(user, DEFAULT if of_default else client)
    is_named = any(part is not None for part in entity)
    both = sorted(set(config) & set(forget))
    if both:
        raise click.UsageError(f"{both[0]} is both set and deleted.")
    changes: dict[str, Any] = {**config, **dict.fromkeys(forget)}
    if changes and not is_named:
        raise click.UsageError("Whose? Give a CLIENT_ID, --default or --user.")
    if "" in entity:
        raise click.UsageError(f"A client id or user must have a name, or be {DEFAULT} for all others.")
    with open_reading(path) as store:
        limits = quotas_of(store).limits()
    if changes:
        with segstore.open(path) as store:
            limits = {entity: quotas_of(store).alter_entity(entity, changes)}
    elif is_named:
        limits = {entity: limits.get(entity, {})}
    _quotas_print(limits, as_json)


def _quotas_print(limits: Limits, as_json: bool) -> None:
    from segstore.coordinator.quotas import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE

    ordered = sorted(limits.items(), key=lambda limit: (limit[0].user or "", limit[0].client_id or ""))
    if as_json:
        for (user, client), rates in ordered:
            whose = {"client_id": client, "user": user}
            print_json({**{kind: name for kind, name in whose.items() if name is not None}, **rates})
        return
    right = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE)
    made = table("user", "client id", *right, right=right)
    for (user, client), rates in ordered:
        add_row(made, user, client, *(rates.get(name) for name in right))
    if limits:
        console().print(made)
    else:
        click.echo("no limits", err=True)
