"""Makes what a command in a sentence of the documentation needs around it: a store, a server, replicas, or a
primary and its standby. On disk: below the directory that a test gives.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from checkpoint_store import QUIET
from cli import ok
from places import REPOSITORY
from waiting import PATIENCE

import segstore
from segstore.filetree import file_tree

TOPICS = ("flights", "delays")
GROUPS = ("delays", "flights-app")
LIMIT = PATIENCE * 1000


class Place(NamedTuple):
    """The values that words of a command stand for, the store that SEGSTORE_PATH names, and standard input.
    `others`: the values of `…`, one after the other.
    """

    values: Mapping[str, str]
    store: str
    stdin: str = ""
    others: tuple[str, ...] = ()


def filled(path: Path) -> str:
    """Make a store of two topics, with groups that have read some of the first."""
    with segstore.open(path) as store:
        for topic in TOPICS:
            store.create_topic(topic)
            store.partition(topic).append_batch([b"%d" % number for number in range(20)])
        for group in GROUPS:
            with segstore.Consumer(store, "flights", group_id=group, auto_offset_reset="earliest") as reader:
                reader.poll(LIMIT, 5)
                reader.commit()
    return str(path)


@contextmanager
def plain(directory: Path) -> Iterator[Place]:
    """A store that nobody has open, a server of another one, and files of both."""
    store = filled(directory / "flights-log")
    exported = directory / "flights.ndjson"
    ok("export", "flights", exported, "--store", store)
    config = directory / "client.properties"
    config.write_text("client.id=docs\n")
    values = {
        "STORE": store,
        "TOPIC": "flights",
        "N": "3",
        "TIME": "2013-07-01",
        "FILE": str(config),
        "TARGET": str(directory / "copy"),
        "PATH": next(map(str, Path(store).glob("flights-0/*.log"))),
        "NAME=VALUE": "retention.ms=7d",
        "[HOST:]PORT": "127.0.0.1:0",
        "DIRECTORY": str(directory / "mirrored"),
    }
    with segstore.open(directory / "served") as served, segstore.serve(served, port=0) as server:
        served.create_topic("flights")
        for name in ("HOST:PORT", "BOOTSTRAP", "localhost:9092"):
            values[name] = server.bootstrap_servers
        others = (store, str(directory / "new1"), str(directory / "new2"))
        yield Place(values, store, exported.read_text(encoding="utf-8"), others)


@contextmanager
def archived(directory: Path) -> Iterator[Place]:
    """A store that has an archive."""
    with plain(directory) as place:
        uri = str(directory / "archive")
        ok("archive", uri, "--store", place.store, "--once")
        restored = str(directory / "restored")
        yield place._replace(values={**place.values, "URI": uri, "DIRECTORY": restored})


@contextmanager
def new_topic(directory: Path) -> Iterator[Place]:
    with plain(directory) as place:
        yield place._replace(values={**place.values, "TOPIC": "audit"})


@contextmanager
def new_file(directory: Path) -> Iterator[Place]:
    with plain(directory) as place:
        yield place._replace(values={**place.values, "FILE": str(directory / "exported.ndjson")})


@contextmanager
def mirrored(directory: Path) -> Iterator[Place]:
    """As `plain`, with a mirror of the server for DIRECTORY."""
    with plain(directory) as place:
        ok("mirror", place.values["BOOTSTRAP"], place.values["DIRECTORY"], "--once")
        yield place


@contextmanager
def server(directory: Path) -> Iterator[Place]:
    """As `plain`, with a setting of a server for NAME=VALUE, and a file that has no setting."""
    with plain(directory) as place:
        Path(place.values["FILE"]).write_text("# as it is by default\n", encoding="utf-8")
        yield place._replace(values={**place.values, "NAME=VALUE": "num.partitions=3"})


@contextmanager
def replicated(directory: Path) -> Iterator[Place]:
    """A replicated store with a replica of each topic in two of three directories."""
    paths = [directory / f"disk{number}" / "log" for number in (1, 2, 3)]
    for path in paths:
        path.parent.mkdir()
    with plain(directory) as place, segstore.open_replicated(paths) as store:
        for topic in TOPICS:
            store.create_topic(topic, assignments={0: [0, 1]})
            store.partition(topic).append(b"on time", acks="all")
        values = {**place.values, "TOPIC[:PARTITION]": "flights:0", "DIRECTORY": "0", "ELECTION": "preferred"}
        store.close()
        yield Place(values, ":".join(map(str, paths)), place.stdin, tuple(map(str, paths)))


@contextmanager
def pair(directory: Path) -> Iterator[Place]:
    """A primary that is served, and its standby, which has all that the primary has."""
    primary, standby = directory / "primary-log", directory / "standby-log"
    filled(primary)
    with segstore.open(primary) as store, segstore.serve(store, port=0) as serving:
        address = serving.bootstrap_servers
        with segstore.follow(address, standby) as running:
            assert running.wait_caught_up(LIMIT)
        yield Place({"HOST:PORT": address, "DIRECTORY": str(standby)}, str(standby))


@contextmanager
def primary_alone(directory: Path) -> Iterator[Place]:
    """The primary of `pair`, closed."""
    with pair(directory) as place:
        pass
    path = str(directory / "primary-log")
    yield Place({**place.values, "DIRECTORY": path}, path)


@contextmanager
def fenced(directory: Path) -> Iterator[Place]:
    """The primary of `pair`, after the standby was promoted."""
    with pair(directory) as place, segstore.promote(place.store, "reachable"):
        pass
    path = str(directory / "primary-log")
    yield Place({"DIRECTORY": path}, path)


@contextmanager
def promoted(directory: Path) -> Iterator[Place]:
    """The standby of `pair` serves; its old primary comes back."""
    with (
        fenced(directory) as place,
        segstore.open(directory / "standby-log") as store,
        segstore.serve(store, port=0) as serving,
    ):
        values = {"NEW": serving.bootstrap_servers, "OLD_DIRECTORY": place.store}
        yield Place(values, place.store)


@contextmanager
def checkpoint(directory: Path) -> Iterator[Place]:
    """A store with two files of a query's checkpoint."""
    path = directory / "checkpoints-log"
    with segstore.open(path) as store:
        tree = file_tree(store, "checkpoints", QUIET)
        for number in range(2):
            tree.write(f"/query-1/offsets/{number}", b"v1\n")
        end = tree.log.end_offset
    values = {"OFFSET": str(end), "PATH": "/query-1/offsets/0", "TARGET": str(directory / "then")}
    yield Place({**values, "BEFORE": "0", "AFTER": str(end)}, str(path))


@contextmanager
def results(directory: Path) -> Iterator[Place]:
    """Results of measurements that were made before."""
    made = REPOSITORY / "benchmarks" / "results" / "zero-copy.json"
    (directory / "results").mkdir()
    for name in ("results/zero-copy.json", "one.json", "other.json"):
        shutil.copyfile(made, directory / name)
    yield Place({"DIR": str(directory / "results")}, "")


PLACES: Mapping[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "archive": archived,
    "bench": results,
    "checkpoints": checkpoint,
    "config": server,
    "create": new_topic,
    "demote": primary_alone,
    "elect": replicated,
    "end-mirror": mirrored,
    "export": new_file,
    "follow": pair,
    "follow NEW OLD_DIRECTORY": promoted,
    "heal": replicated,
    "promote": pair,
    "reassign": replicated,
    "replicas": replicated,
    "restore": archived,
    "replicas --store DIRECTORY": primary_alone,
    "import -s … -s … -s …": replicated,
    "serve": server,
    "unfence": fenced,
    "unreplicate": replicated,
}
"""The place of a command, by its text or by its first word; `plain` for the others."""


def place_of(text: str) -> Callable[[Path], AbstractContextManager[Place]]:
    """Return the place of a command, which is given without `segstore`."""
    return PLACES.get(text) or PLACES.get(text.partition(" ")[0], plain)
