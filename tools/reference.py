"""Writes the pages of docs/reference/ out of the code: public names, settings, commands.

Usage: `.venv/bin/python tools/reference.py`. On disk: those pages; tests/docs/test_reference.py holds that
they are up to date.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import api_reference
import click
from api_reference import escaped
from client_settings import row

import segstore
from segstore.cli.app import COMMANDS, ListedCommand, commands
from segstore.client.consumer.config import ConsumerConfig
from segstore.client.producer.config import ProducerConfig
from segstore.client.share.config import ShareConsumerConfig
from segstore.config import GroupConfig, StoreConfig, TopicConfig
from segstore.config.options import OptionRow
from segstore.config.settings import Settings
from segstore.mirroring.settings import MirrorConfig
from segstore.server.settings import ServerConfig
from segstore.standby.settings import StandbyConfig

PLACE = Path(__file__).parents[1] / "docs" / "reference"
MADE = "<!-- Made by tools/reference.py: change the code, not this page. -->"
SETTINGS: dict[str, tuple[type[Settings], str]] = {
    "Topics": (
        TopicConfig,
        "`store.create_topic(name, config={...})`, `alter_topic`, `segstore create --config NAME=VALUE`. "
        'In Python a value is a number of the unit (`{"retention.ms": 604_800_000}`); the command line '
        "also takes `7d`.",
    ),
    "Stores": (StoreConfig, "`segstore.open(path, config={...})`."),
    "Groups": (
        GroupConfig,
        '`AdminClient.alter_configs([ConfigResource("GROUP", name, {...})])`, '
        "`kafka-configs --entity-type groups`; also before the group exists.",
    ),
    "Producers": (
        ProducerConfig,
        "`segstore.Producer(store, ...)` and `AsyncProducer`, with kafka-python's names.",
    ),
    "Consumers": (
        ConsumerConfig,
        "`segstore.Consumer(store, ...)` and `AsyncConsumer`, with kafka-python's names.",
    ),
    "Share consumers": (
        ShareConsumerConfig,
        "`segstore.ShareConsumer(store, ...)` and `AsyncShareConsumer`, with kafka-python's spelling.",
    ),
    "Servers": (
        ServerConfig,
        "`segstore.serve(store, ...)`, with underscores for the dots, and `segstore serve --set NAME=VALUE`.",
    ),
    "Mirrors": (MirrorConfig, "`segstore.mirror(bootstrap, directory, ...)`, with underscores for the dots."),
    "Standbys": (
        StandbyConfig,
        "`segstore.follow(bootstrap, directory, ...)`, with underscores for the dots.",
    ),
}
GROUPS: dict[str, tuple[str, ...]] = {
    "Stores": ("open", "Store", "StoreMember", "TopicInfo", "check", "Finding", "copy", "Copied"),
    "Logs and records": (
        *("PartitionLog", "Scan", "TopicScan", "TopicRecord", "Records", "Record"),
        *("EARLIEST", "LATEST", "transfer_methods"),
    ),
    "Tables": ("scan_polars", "dataset", "duckdb.attach", "serializer"),
    "Producers": ("Producer", "AsyncProducer", "ProducerRecord", "RecordMetadata"),
    "Consumers": (
        *("Consumer", "AsyncConsumer", "ConsumerRecord", "ConsumerRebalanceListener"),
        *("SubscriptionPattern", "ConsumerGroupMetadata"),
        *("TopicPartition", "OffsetAndMetadata", "OffsetAndTimestamp"),
    ),
    "Share consumers": ("ShareConsumer", "AsyncShareConsumer", "AcknowledgeType"),
    "Servers": ("serve", "Server"),
    "Replicas": (
        *("open_replicated", "ReplicatedStore", "PartitionState", "ReplicaState", "Healed", "unreplicate"),
    ),
    "Mirrors": (
        *("mirror", "Mirror", "MirroredPartition", "end_mirror", "EndedPartition"),
        *("mirror_to", "MirrorTo", "SentPartition"),
    ),
    "Standbys": ("follow", "Standby", "promote", "unfence", "cut_records", "CutRecord"),
    "Archives": ("archive", "Archive", "restore", "Restored"),
    "Administration": (
        *("AdminClient", "KafkaAdminClient", "NewTopic", "NewPartitions"),
        *("ConfigResource", "ConfigResourceType", "Groups", "Reset"),
    ),
}  # fmt: skip
"""What stands under which heading; a public name that is in none stands under "More"."""


CLI = """\
The store is named by `--store PATH`, before or behind the command, or by SEGSTORE_PATH. `topics`, `create`,
`alter`, `delete`, `produce`, `consume` and `groups` also take `--bootstrap HOST:PORT` (SEGSTORE_BOOTSTRAP): a
server or Kafka's brokers. If another process has the store open for writing and serves it, `create`, `alter`,
`delete`, `produce` and `groups` ask its server. Both need `pip install confluent-kafka`.

Settings have Kafka's dotted names (`--config retention.ms=7d`; units: ms, s, min, h, d, w, and kB, MB, GB,
KiB, MiB, GiB). The Tab key completes commands, options, topics and groups after
`eval "$(_SEGSTORE_COMPLETE=bash_source segstore)"` in `~/.bashrc`, the same with `zsh_source` in `~/.zshrc`,
or `_SEGSTORE_COMPLETE=fish_source segstore | source` in `~/.config/fish/completions/segstore.fish`."""
"""What the page of the command line begins with."""
STATUSES = """\
## Exit status

| status | when |
|---|---|
| 0 | Done. `serve`, `follow`, `mirror` and `archive` end with it after SIGTERM, too. |
| 1 | An error, named by a line on standard error; damage found by `check`; "no" as answer to a question. |
| 2 | Wrong usage: an unknown command or option, or a value that it does not take, as what is no SQL. |
| 130 | Ctrl-C, the usual end of `consume --follow`, `serve`, `follow`, `mirror`, `archive`. |
| 129 | SIGHUP, but for `serve`, which reads certificates, users and rights again. |
| 143 | SIGTERM; `follow --once`, `mirror --once` and `archive --once` end with it, their work unfinished. |
| 141 | The reader of a pipe has closed it, as `head` does. |"""
"""What the page of the command line says between the list of commands and the commands."""


def _public() -> list[str]:
    return [name for name in segstore.__all__ if not name.startswith("_")]


def _is_error(name: str) -> bool:
    value = getattr(segstore, name)
    return inspect.isclass(value) and issubclass(value, BaseException)


def api() -> str:
    """All public names of `segstore` but its errors."""
    grouped = {name for names in GROUPS.values() for name in names}
    rest = tuple(n for n in _public() if n not in grouped and not _is_error(n) and n != "errors")
    return api_reference.page({**GROUPS, **({"More": rest} if rest else {})}, MADE)


def errors() -> str:
    """All exceptions, with what each is caught as."""
    module = importlib.import_module("segstore.errors")
    lines = [
        *("# Errors", "", MADE, ""),
        *("All are `SegstoreError`s, importable from `segstore` and from `segstore.errors`.", ""),
        *("| error | is also | when |", "|---|---|---|"),
    ]
    for name, error in vars(module).items():
        if (
            inspect.isclass(error)
            and issubclass(error, module.SegstoreError)
            and error.__module__ == module.__name__
        ):
            bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
            lines.append(row(f"`{name}`", bases, _sentence(inspect.getdoc(error) or "")))
    return "\n".join(lines) + "\n"


def settings() -> str:
    """Tables of all settings."""
    lines = [
        "# Settings",
        "",
        MADE,
        "",
        "Names, defaults and meanings are Kafka's, where Kafka has the setting.",
    ]
    for title, (kind, where) in SETTINGS.items():
        lines += ["", f"## {title}", "", where, "", *_table(kind.describe())]
    return "\n".join(lines) + "\n"


def _table(options: Iterable[OptionRow]) -> Iterator[str]:
    yield "| setting | default | unit | allowed | meaning |"
    yield "|---|---|---|---|---|"
    for each in options:
        default = "" if each.default in (None, "") else f"`{_plain(each.default)}`"
        yield row(f"`{each.name}`", default, each.unit, each.allowed, _sentence(each.doc))


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def cli() -> str:
    """All commands, with their options."""
    lines = ["# Command line", "", MADE, "", CLI, "", "| command | what it does |", "|---|---|"]
    top = click.Context(commands, info_name="segstore", **commands.context_settings)
    for name in COMMANDS:
        does = ListedCommand(name).itself().get_short_help_str(limit=500)
        lines.append(row(f"[`segstore {name}`](#segstore-{name})", escaped(does)))
    lines += ["", STATUSES]
    for name in COMMANDS:
        for context in _with_commands(
            click.Context(ListedCommand(name).itself(), info_name=name, parent=top)
        ):
            lines += ["", *_command(context)]
    return "\n".join(lines) + "\n"


def _with_commands(context: click.Context) -> Iterator[click.Context]:
    yield context
    command = context.command
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name)
        assert inner is not None
        yield from _with_commands(click.Context(inner, info_name=name, parent=context))


def _command(context: click.Context) -> Iterator[str]:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from (f"## {context.command_path}", "", "```text", usage, "```", "")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):  # click's mark of lines that stay as they are
            yield from ("```text", *paragraph.splitlines()[1:], "```", "")
        else:
            yield from (escaped(_sentence(paragraph)), "")
    records = [(param, param.get_help_record(context)) for param in command.get_params(context)]
    shown = [(param, *record) for param, record in records if record is not None and record[1]]
    if shown:
        yield from ("| option | meaning |", "|---|---|")
        yield from (row(*_option(*each)) for each in shown)


def _option(param: click.Parameter, names: str, meaning: str) -> tuple[str, str]:
    """Name and meaning of an option. A span of code within a table can't have a "|": the pages of GitHub and
    of the site disagree about "\\|" there.
    """
    choices = re.search(r"\[(\w+(?:\|\w+)+)\]$", names)
    if choices:
        names = names[: choices.start()] + max(param.opts, key=len).strip("-").upper()
        text, bracket, more = meaning.partition("  [")
        meaning = f"{text} One of {choices[1].replace('|', ', ')}. {bracket}{more}"
    return f"`{names.replace('|', ' or ')}`", escaped(_sentence(meaning))


def _sentence(text: str) -> str:
    return " ".join(text.split())


PAGES = {"api.md": api, "errors.md": errors, "settings.md": settings, "cli.md": cli}

if __name__ == "__main__":
    PLACE.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (PLACE / name).write_text(make(), encoding="utf-8")
