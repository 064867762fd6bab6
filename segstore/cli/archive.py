"""`segstore archive`: archives a store, until Ctrl-C, or with --once until all records of the start are
archived. With `verify` it checks an archive.

On disk: the store is only read. Threads: the main thread waits. The archive has its own threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click import get_current_context
from click.core import ParameterSource

from segstore.cli.lifetime import Lifetime
from segstore.cli.logs import log_options, logged
from segstore.cli.options import (
    STORE,
    http_option,
    in_plain_units,
    json_option,
    no_bootstrap,
    print_http_address,
    store_given,
)
from segstore.cli.output import counted, print_json, progress_bar, size_text, status_line
from segstore.cli.signals import ended_by_signals, stopped_by_signals

if TYPE_CHECKING:
    from segstore.archiving.archive import Archive

VERIFY = "verify"
_LOOK_MS = 500
_OF_STORE = "--store"
_ONLY_VERIFY = {"as_json": "--json"}


def _in_ms(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
    return _whole(value, "value.ms", "a time, as 1s or 7d")


def _in_bytes(_ctx: click.Context, _param: click.Parameter, value: str) -> int:
    return _whole(value, "value.bytes", "a size, as 10GB")


def _whole(value: str, unit: str, what: str) -> int:
    try:
        return int(in_plain_units(unit, value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not {what}") from None


@click.command()
@click.argument("words", metavar="[verify] URI", nargs=-1, required=True)
@store_given("Directory of the store, which another process may write.", kind=click.Path(file_okay=False))
@click.option(
    "--topics",
    "-t",
    metavar="NAME",
    multiple=True,
    help="A topic; may be repeated, and may have several, with commas between them. By default all. Internal"
    " topics, which have groups' offsets and transactions, are archived in any case.",
)
@click.option(
    "--interval",
    metavar="TIME",
    default="1s",
    show_default=True,
    callback=_in_ms,
    help="How often what is new is archived: what a lost disk costs, and the number of requests.",
)
@click.option("--once", is_flag=True, help="End when all is there that the store had at the start.")
@click.option(
    "--retention",
    metavar="TIME",
    default="-1",
    callback=_in_ms,
    help="How long records stay in the archive that the store has deleted, such as 90d; by default for ever.",
)
@click.option(
    "--retention-bytes",
    metavar="SIZE",
    default="-1",
    callback=_in_bytes,
    help="Most bytes of a partition in the archive; by default there is no limit.",
)
@click.option(
    "--replaced-retention",
    metavar="TIME",
    default="7d",
    show_default=True,
    callback=_in_ms,
    help="How long segments stay that compaction has replaced: so far back a compacted topic can go.",
)
@http_option
@json_option
@log_options
@no_bootstrap
def archive(
    words: tuple[str, ...],
    path: str | None,
    once: bool,
    http: str | None,
    as_json: bool,
    log_format: str,
    log_level: str,
    **settings: Any,
) -> int:
    """Archive the store to URI, such as s3://bucket/log or a directory, until Ctrl-C. With `verify`, read and
    check every object of an archive.

    Records are in the archive a second after they were appended: each second the new records become one
    object. Finished segments follow, each as objects of its own. Called again, the command continues where it
    stopped. A second `segstore archive` for the same archive takes the archive over, and the first command
    stops. `segstore restore URI DIRECTORY` restores the store from the archive, as of now or of an earlier
    moment.

    URIs are those of pyarrow.fs. Credentials come from the environment, as Amazon's tools have them, or from
    the URI, which is shown without credentials.
    """
    if words[0] == VERIFY and len(words) == 2:
        _check_only("json")
        return _verify(words[1], as_json)
    if len(words) != 1 or words[0] == VERIFY:
        raise click.UsageError("Give one URI, or `verify` and one.")
    if as_json:
        raise click.UsageError("--json is for `segstore archive verify URI`.")
    if path is None:
        raise click.UsageError(f"Which store is archived? Give --store PATH (or {STORE}).")
    with logged(log_format, log_level):
        _archive(words[0], path, once, http, settings)
    return 0


def _check_only(*allowed: str) -> None:
    """Raise UsageError if an option is given that `verify` does not accept."""
    ctx = get_current_context()
    for param in ctx.command.params:
        given = ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
        if (
            isinstance(param, click.Option)
            and given
            and not {f"--{each}" for each in allowed} & {*param.opts}
        ):
            raise click.UsageError(f"{param.opts[0]} does not go with `segstore archive verify`.")


# --- archive ---------------------------------------------------------------------------------


def _archive(uri: str, path: str, once: bool, http: str | None, settings: dict[str, Any]) -> None:
    from segstore.archiving.archive import opened
    from segstore.archiving.archive_uri import redacted
    from segstore.archiving.settings import checked
    from segstore.cli.places.of_store import check_there

    check_there(path)
    names = [part for text in settings["topics"] for part in text.split(",") if part]
    asked = checked(
        names or None,
        settings["interval"],
        retention_ms=settings["retention"],
        retention_bytes=settings["retention_bytes"],
        replaced_retention_ms=settings["replaced_retention"],
    )
    with (
        stopped_by_signals(unfinished=once),
        Lifetime(path) as life,
        opened(path, uri, asked) as running,
        life.until_stopped(),
    ):
        life.started(f"is archived at {redacted(uri)}")
        click.echo(f"{path} is archived at {redacted(uri)}")
        if once:
            running.run_once()
            click.echo(f"{redacted(uri)} has all that {path} had")
        else:
            _run(running, http)


def _run(running: Archive, http: str | None) -> None:
    if http is not None:
        from segstore.archiving.archive_http import begin_http

        print_http_address(begin_http(http, running))
    running.start()
    with status_line("archive") as line:
        while not running.wait(_LOOK_MS):
            line.update(line.task_ids[0], description=_shown(running))


def _shown(running: Archive) -> str:
    lag, error = running.total_lag(), running.error
    if error is not None:
        return f"archive: {error}"
    if lag.records <= 0:
        return "archive: it has all that the store has"
    return f"archive: {lag.records:,} records, {size_text(lag.bytes)}, {lag.ms:,} ms behind"


# --- verify ----------------------------------------------------------------------------------


def _verify(uri: str, as_json: bool) -> int:
    from segstore.archiving.archive_uri import redacted
    from segstore.archiving.verify import verify

    with ended_by_signals(), progress_bar(None, f"checking {redacted(uri)}") as bar:
        done = verify(uri, progress=lambda size: bar.advance(bar.task_ids[0], size))
    for each in done.findings:
        if as_json:
            print_json(each._asdict())
        else:
            click.echo(str(each))
    found = counted(len(done.findings), "finding") if done.findings else "sound"
    click.echo(
        f"{redacted(uri)}: {found}, {counted(done.objects, 'object')}, {size_text(done.bytes)} checked",
        err=True,
    )
    return int(bool(done.findings))
