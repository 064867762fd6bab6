"""`segstore sql`: runs SQL on the topics of a store, with DuckDB.

On disk: the store is only read, and another process may be writing to it. The file that the user names is
written either completely or not at all. Threads: the main thread, and the threads of
`segstore.cli.sql_session`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from segstore.choices import ISOLATION_LEVELS, ON_BAD
from segstore.cli.completion import topic_names
from segstore.cli.new_file import check_new, new_file
from segstore.cli.options import store_option
from segstore.cli.signals import ended_by_signals
from segstore.errors import Needing

if TYPE_CHECKING:
    from segstore.cli.sql_output import Result
    from segstore.storage.store.store import Store

FORMATS = ("table", "csv", "json", "ndjson", "parquet", "arrow")
SUFFIXES = {
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".ndjson", ".jsonl"), "ndjson"),
    ".csv": "csv",
    ".json": "json",
    ".parquet": "parquet",
}
BINARY = ("parquet", "arrow")
VALUES = ("json", "avro")


def _values(_ctx: click.Context, _param: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """Return the format of values, by topic. The format of the topic "" applies to each topic that the query
    names.
    """
    found = {}
    for text in given:
        topic, _, form = text.rpartition("=")
        if form not in VALUES:
            raise click.BadParameter(f"{text!r} must be FORMAT or TOPIC=FORMAT; formats: {', '.join(VALUES)}")
        found[topic] = form
    return found


def _value_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the completions of an incomplete FORMAT or TOPIC=FORMAT."""
    topic, equals, form = incomplete.partition("=")
    if equals:
        return [f"{topic}={each}" for each in VALUES if each.startswith(form)]
    names = [f"{name}=" for name in topic_names(ctx, param, incomplete)]
    return [*(each for each in VALUES if each.startswith(incomplete)), *names]


@click.command()
@click.argument("query", required=False)
@click.option(
    "--file",
    "-f",
    "script",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="Run the statements of a file, in place of QUERY; - is standard input.",
)
@click.option(
    "--format",
    "wanted",
    type=click.Choice(["auto", *FORMATS]),
    default="auto",
    show_default=True,
    help="auto: by the suffix of --output; else table on a terminal, and csv in a pipe.",
)
@click.option(
    "--output",
    "-o",
    "target",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    default="-",
    help="Write the result to FILE, whole or not at all; by default to standard output.",
)
@click.option("--force", is_flag=True, help="Replace FILE if there is one already.")
@click.option(
    "--values",
    metavar="[TOPIC=]FORMAT",
    multiple=True,
    callback=_values,
    shell_complete=_value_names,
    help="Decode values of TOPIC, or of all topics in QUERY, to columns; may be repeated. FORMAT is"
    f" one of {', '.join(VALUES)}.",
)
@click.option(
    "--value-schema",
    type=click.File("r", encoding="utf-8"),
    metavar="FILE",
    help="The schema of values in Avro, as JSON.",
)
@click.option(
    "--on-bad",
    type=click.Choice(ON_BAD),
    default="error",
    show_default=True,
    help="What becomes of a value that can't be decoded: the query fails, its columns are null, or a column"
    " value_error has the reason, too.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(ISOLATION_LEVELS),
    default="read_committed",
    show_default=True,
    help="read_committed leaves out records of aborted and open transactions.",
)
@store_option
def sql(
    query: str | None,
    script: Any,
    wanted: str,
    target: str,
    force: bool,
    values: dict[str, str],
    value_schema: Any,
    on_bad: str,
    isolation_level: str,
    path: str,
) -> None:
    """Run SQL on the topics of the store, by DuckDB. Each topic is a view with the topic's name.

    Columns: topic, partition, offset, timestamp (UTC), timestamp_type, key, value, headers. QUERY is DuckDB's
    SQL, one statement or several with semicolons between them; it may read other files, too. A topic's name
    with a dot or a hyphen is quoted: "orders.eu". On a terminal only the first rows are shown, and the number
    of further rows. Bytes are shown as text if they are UTF-8; in JSON, other bytes are base64, as in the
    output of `consume`.
    """
    from segstore.cli.places.of_store import open_reading

    form = _form(wanted, target)
    if target == "-" and form in BINARY and sys.stdout.isatty():
        raise click.UsageError(f"A terminal can't show {form}: give --output FILE, or a pipe.")
    if form == "table" and target != "-":
        raise click.UsageError("A table is for reading: a file has one of the other formats.")
    check_new(target, force)
    text = _text(query, script)
    schema = _schema(values, value_schema)
    check_installed()
    try:
        with ended_by_signals(), open_reading(path) as store:
            meant = {
                name: {"values": each, "on_bad": on_bad} | (schema if each == "avro" else {})
                for name, each in _meant(store, values, text).items()
            }
            _run(store, text, meant, isolation_level, form, target)
    except KeyboardInterrupt:
        # The terminal has printed ^C on this line, so the line is ended first.
        behind = "\n" if sys.stderr.isatty() else ""
        click.echo(f"{behind}segstore: interrupted", err=True)
        raise


def check_installed() -> None:
    """Raise MissingPackageError if a package that queries need is not installed."""
    with Needing("pyarrow", "segstore sql"):
        import pyarrow  # noqa: F401
    with Needing("duckdb", "segstore sql"):
        import duckdb  # noqa: F401


def _form(wanted: str, target: str) -> str:
    """Return the format of the output. If `wanted` is "auto", it is the format that the suffix of the file
    `target` means, or for standard output a table (on a terminal) or CSV. Raises click.UsageError if the
    suffix means no format.
    """
    if wanted != "auto":
        return wanted
    if target == "-":
        return "table" if sys.stdout.isatty() else "csv"
    form = SUFFIXES.get(os.path.splitext(target)[1].lower())
    if form is None:
        raise click.UsageError(f"Which format? Give --format: {target!r} does not say it by its suffix.")
    return form


def _text(query: str | None, script: Any) -> str:
    """Return the text of the statements, which is read from the command line, a file or standard input."""
    if query is not None and script is not None:
        raise click.UsageError("Give QUERY or --file, not both.")
    if query == "-" or (query is None and script is None and not sys.stdin.isatty()):
        script = sys.stdin
    text = query if script is None else script.read()
    if text is None or not text.strip():
        raise click.UsageError('Which query? Give one, as in `segstore sql "select count(*) from flights"`.')
    return str(text)


def _schema(values: dict[str, str], given: Any) -> dict[str, str]:
    """Return the keyword argument `value_schema` if a topic's format is avro, and {} if none is. Raises
    click.UsageError if avro has no schema, or if a schema is given without avro.
    """
    if "avro" not in values.values():
        if given is not None:
            raise click.UsageError("--value-schema is for --values avro.")
        return {}
    if given is None:
        raise click.UsageError("Which schema? --values avro needs --value-schema FILE.")
    return {"value_schema": given.read()}


def _meant(store: Store, values: dict[str, str], text: str) -> dict[str, str]:
    """Return the format of values of each topic that has one. Raises UnknownTopicOrPartitionError."""
    from segstore.storage.meta.topics import check_there

    topics, found = store.topics(), {}
    if "" in values:
        found = {name: values[""] for name in topics if name.lower() in text.lower()}
    for name in values.keys() - {""}:
        check_there(topics, name)
        found[name] = values[name]
    return found


def _run(
    store: Store, text: str, values: dict[str, dict[str, str]], isolation_level: str, form: str, target: str
) -> None:
    from segstore.cli.sql_output import write
    from segstore.cli.sql_progress import ScanProgress
    from segstore.cli.sql_session import SqlSession
    from segstore.cli.sql_table import show

    with SqlSession(store, text, values, isolation_level) as session, ScanProgress(store) as reading:
        if form == "table":
            for result in session.results():
                show(result, reading.aside)
            return
        with new_file(target) as stream:
            results = session.results()
            if form in BINARY or target != "-":
                results = _only(results)
            for result in results:
                with reading.aside() if target == "-" and sys.stdout.isatty() else nullcontext():
                    write(form, result, stream)
                    stream.flush()


def _only(results: Iterator[Result]) -> Iterator[Result]:
    """Yield the result of the statements. Raises click.UsageError if there is no result, or more than one."""
    first = next(results, None)
    if first is None:
        raise click.UsageError("The query has no result that could be written.")
    yield first
    if next(results, None) is not None:
        raise click.UsageError("The query has several results, and the output takes one.")
