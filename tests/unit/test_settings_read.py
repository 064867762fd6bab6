"""Every accepted setting is read somewhere, or can have only one value, and says why: an option without
effect is refused with a named error.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from stores import values

import segstore
from segstore.client.consumer.config import ConsumerConfig
from segstore.client.producer.config import ProducerConfig
from segstore.client.share.config import ShareConsumerConfig
from segstore.config import StoreConfig, TopicConfig
from segstore.errors import ConfigError
from segstore.server.settings import ServerConfig
from segstore.spark.options import SourceOptions
from segstore.spark.sink_store import SinkOptions

PACKAGE = Path(segstore.__file__).parent

KINDS: dict[str, tuple[type, str]] = {
    "topic": (TopicConfig, "config/__init__.py"),
    "store": (StoreConfig, "config/__init__.py"),
    "producer": (ProducerConfig, "client/producer/config.py"),
    "consumer": (ConsumerConfig, "client/consumer/config.py"),
    "share consumer": (ShareConsumerConfig, "client/share/config.py"),
    "server": (ServerConfig, "server/settings.py"),
    "Spark's source": (SourceOptions, "spark/options.py"),
    "Spark's sink": (SinkOptions, "spark/sink_options.py"),
}
# What a setting is read through: a property that has its name, or a name that is put together.
THROUGH = {
    "segment_ms": "max_segment_ms",
    "share_acknowledgement_mode": "is_explicit",
    "share_acquire_mode": "is_strict",
    **{f"compression_{codec}_level": "'compression_" for codec in ("gzip", "lz4", "zstd")},
}
# One value only, by reason.
ONE_VALUE: dict[tuple[str, str], tuple[Any, str]] = {
    ("topic", "preallocate"): (True, "must be false"),
    ("store", "log_flush_scheduler_interval_ms"): (
        1000,
        "since each log is flushed when its flush.ms has passed",
    ),
    ("producer", "allow_auto_create_topics"): (True, "topics are made by Store.create_topic"),
    ("consumer", "allow_auto_create_topics"): (True, "topics are made by Store.create_topic"),
    ("share consumer", "allow_auto_create_topics"): (True, "topics are made by Store.create_topic"),
    ("server", "ssl_keystore_type"): ("JKS", "one of PEM"),
    ("server", "ssl_truststore_type"): ("JKS", "one of PEM"),
}


def reads(module: ast.AST) -> Iterator[str]:
    """Names of attributes that are read, and with a quote what such names are put together from."""
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f"'{node.value}"


def settings() -> list[tuple[str, str]]:
    return [(kind, f.name) for kind, (cls, _) in KINDS.items() for f in fields(cls) if f.name != "explicit"]


@pytest.fixture(scope="module")
def read_in() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    of_core = set((PACKAGE / "replication" / "core").rglob("*.py"))  # it has names of its own for them
    for path in set(PACKAGE.rglob("*.py")) - of_core:
        for name in reads(ast.parse(path.read_bytes())):
            found.setdefault(name, set()).add(str(path.relative_to(PACKAGE)))
    return found


@pytest.mark.parametrize(("kind", "name"), settings(), ids=lambda part: part)
def test_an_accepted_setting_is_read_where_it_has_an_effect(
    kind: str, name: str, read_in: dict[str, set[str]]
) -> None:
    own = set() if kind.startswith("Spark") else {KINDS[kind][1]}
    assert bool(read_in.get(THROUGH.get(name, name), set()) - own) != ((kind, name) in ONE_VALUE)


@pytest.mark.parametrize(("kind", "name"), ONE_VALUE, ids=lambda part: part)
def test_a_setting_that_can_have_one_value_says_so(kind: str, name: str) -> None:
    value, reason = ONE_VALUE[kind, name]
    cls: Any = KINDS[kind][0]
    dotted = name.replace("_", ".") if kind in ("topic", "store") else name
    with pytest.raises(ConfigError) as caught:
        cls.parse({dotted: value})
    assert str(caught.value).startswith(f"{dotted}={value!r}")
    assert reason in str(caught.value)
    default = next(f.default for f in fields(cls) if f.name == name)
    assert getattr(cls.parse({dotted: default}), name) == default


def test_all_that_makes_no_sense_is_told_at_once() -> None:
    given = {
        "api_version": (2, 6),
        "bootstrap_servers": "localhost",
        "request_timeout_ms": 1,
        "ssl_cafile": "x",
    }
    for cls in (ProducerConfig, ConsumerConfig):
        with pytest.raises(ConfigError) as caught:
            cls.parse({**given, "ssl_keyfile": "y", "client_id": "c"})
        assert "bootstrap_servers" in str(caught.value)
        assert "ssl_cafile, ssl_keyfile are refused: there is no network to secure" in str(caught.value)
        assert not any(name in str(caught.value) for name in ("client_id", "api_version", "request_timeout"))


def test_a_kept_topic_with_a_setting_of_replicas_opens(store_dir: Path) -> None:
    """As earlier versions wrote it; "r" and "rw". Without replicas it has no effect."""
    with segstore.open(store_dir) as store:
        topic_id = store.create_topic("t").topic_id
        store.partition("t").append(b"x")
    config = {"min.insync.replicas": 2, "retention.bytes": 1 << 40}
    held = {"version": 1, "topic_id": topic_id, "partitions": 1, "config": config}
    directory = store_dir / ".segstore" / "topics"
    [path.unlink() for path in directory.iterdir()]  # they kept one file, without a checksum
    (directory / "t.json").write_text(json.dumps(held))
    for mode in ("r", "rw"):
        with segstore.open(store_dir, mode) as store:
            assert store.topics()["t"].config == config
            assert values(store.partition("t")) == [b"x"]


COMMANDS = [
    (str(path.relative_to(PACKAGE)), node)
    for room in ("cli", "bench", "demo")
    for path in sorted((PACKAGE / room).rglob("*.py"))
    for node in ast.walk(ast.parse(path.read_bytes()))
    if isinstance(node, ast.FunctionDef) and any("command(" in ast.unparse(d) for d in node.decorator_list)
]


@pytest.mark.parametrize(("path", "node"), COMMANDS, ids=lambda part: getattr(part, "name", part))
def test_every_option_of_a_command_is_read(path: str, node: ast.FunctionDef) -> None:
    given = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
    body = [each for statement in node.body for each in ast.walk(statement)]
    read = {each.id for each in body if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    assert not {name for name in given - read if not name.startswith("_")}
