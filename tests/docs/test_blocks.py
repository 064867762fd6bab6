"""Every block of code of a page that people read is run by a test: by this one, or by the one that ELSEWHERE
names. LEFT_OUT has those that can't be run, and why.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pages
import pytest
from certificates import certificates
from documented_commands import Reason, guides, text_of
from pages import Setting
from places import GOLDEN, REPOSITORY

import segstore
from segstore.testing import Broker

pytestmark = pytest.mark.kind("examples")

LEFT_OUT: Mapping[str, Mapping[str, Reason]] = {
    "README.md": {
        "make demo    #": Reason.MINUTES,
        "python3 -m venv ~/segstore-env": Reason.INSTALLS,
    },
    "docs/index.md": {"python3 -m venv ~/segstore-env": Reason.INSTALLS},
    "docs/operate.md": {
        "useradd --system": Reason.INSTALLS,
        "install -o segstore": Reason.INSTALLS,
        "runuser -u segstore": Reason.INSTALLS,
        "scrape_configs:": Reason.NO_PROGRAM,
        "2026-11-30T09:41:02.123Z INFO": Reason.NO_PROGRAM,
        "ExecReload=": Reason.NO_PROGRAM,
    },
    "docs/serve.md": {"User:alice: read": Reason.NO_PROGRAM},
    "docs/standby.md": {"primary-log is the primary": Reason.NO_PROGRAM},
    "docs/zero-copy.md": {"segstore bench zero-copy --directory": Reason.MINUTES},
}
"""Blocks that are not run, named by what they begin with, and the reason."""

ELSEWHERE = {
    "docs/migrating.md": "docs/test_tutorials.py",
    "docs/moving-to-kafka.md": "kafka/test_mirror_to.py",
    "docs/processes.md": "docs/test_processes.py",
    "docs/reference/api.md": "docs/test_reference.py",  # signatures, which are made from the code
    "docs/reference/cli.md": "docs/test_reference.py",  # usage lines, which are made from the commands
    "docs/spark.md": "spark/test_tutorial.py",
    "docs/testing.md": "docs/test_testing.py",
    **{
        f"docs/tutorials/{path.name}": "docs/test_tutorials.py"
        for path in (REPOSITORY / "docs" / "tutorials").glob("*.md")
    },
    "docs/tutorials/spark.md": "spark/test_tutorial.py",
}
"""The tests that run all blocks of a page but those of LEFT_OUT."""


def left_out(page: str) -> list[str]:
    """The first lines of the blocks of a page that are not run."""
    lines = [block.first_line for block in pages.blocks(REPOSITORY / page)]
    return [line for line in lines if line.startswith(tuple(LEFT_OUT.get(page, ())))]


# --- settings ------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def disks(directory: Path) -> dict[str, str]:
    found = {f"/disk{number}/": directory / f"disk{number}" for number in range(1, 5)}
    for disk in found.values():
        disk.mkdir()
    return {said: f"{disk}/" for said, disk in found.items()}


@contextmanager
def nothing(directory: Path) -> Iterator[Setting]:
    yield Setting()


@contextmanager
def readme(directory: Path) -> Iterator[Setting]:
    yield Setting({"9092": str(free_port())})


@contextmanager
def clients(directory: Path) -> Iterator[Setting]:
    yield Setting(variables={"SEGSTORE_PATH": str(directory / "orders-log")})


@contextmanager
def archived(directory: Path) -> Iterator[Setting]:
    """Times of the page are moments after all that it appends."""
    yield Setting({"2026-11-30T11:59:00Z": "2100-01-01", "2026-11-29T12:00:00Z": "2100-01-01"})


@contextmanager
def mirror(directory: Path) -> Iterator[Setting]:
    def store_with_one_more() -> None:
        with segstore.open(directory / "flights-store") as store:
            store.create_topic("flights")
            for record in log:
                store.partition("flights").append(record.value, timestamp=record.timestamp)
            store.partition("flights").append(b"late")

    with Broker(topics=["flights", "other"]) as broker:
        log = broker.store.partition("flights")
        log.append(b"on time")
        named = ("kafka1:9092,kafka2:9092", "kafka1:9092", "127.0.0.1:9092")
        yield Setting(
            dict.fromkeys(named, broker.bootstrap_servers), before={"mirror --to kafka1": store_with_one_more}
        )
        assert log.end_offset == 2


@contextmanager
def replication(directory: Path) -> Iterator[Setting]:
    def plain() -> None:
        with segstore.open(directory / "disk1" / "plain") as store:
            store.create_topic("flights")
            store.partition("flights").append(b"on time")

    lost = directory / "disk2" / "log"
    missing, migrated = "# the second one is missing", "# the first one is a plain store"
    before = {missing: lambda: os.rename(lost, f"{lost}-lost"), migrated: plain}
    yield Setting(disks(directory), before=before)


@contextmanager
def serve(directory: Path) -> Iterator[Setting]:
    def users() -> None:
        certificates(directory)
        (directory / "users.txt").write_text("alice:secret\nadmin:more secret\n")

    yield Setting(
        {"127.0.0.1:9092": "127.0.0.1:0", "0.0.0.0:9093": "127.0.0.1:0"}, before={"--sasl-users": users}
    )


@contextmanager
def operate(directory: Path) -> Iterator[Setting]:
    certificates(directory)
    (directory / "users.txt").write_text("alice:secret\nadmin:more secret\n")
    named = ("127.0.0.1:9092", "127.0.0.1:9094", "127.0.0.1:9100")
    ports = {address: f"127.0.0.1:{free_port()}" for address in named}
    port = free_port()
    file = REPOSITORY / "operate" / "server.properties"
    copied = {"cp operate/server.properties conf": f"sed s/9093/{port}/ {file} > conf/server.properties"}
    secured = {"0.0.0.0:9093": f"0.0.0.0:{port}", "localhost:9093": f"localhost:{port}"}
    others = {"127.0.0.1:9093": "127.0.0.1:0", "--http 9100": "--http 0 --listen 0"}
    yield Setting({**copied, **secured, **ports, **others})


@contextmanager
def standby(directory: Path) -> Iterator[Setting]:
    with ExitStack() as primary, ExitStack() as promoted:
        store = primary.enter_context(segstore.open(directory / "primary-log"))
        store.create_topic("flights")
        server = primary.enter_context(segstore.serve(store, port=0))
        port = free_port()

        def serve_promoted() -> None:
            primary.close()
            promoted_store = promoted.enter_context(segstore.open(directory / "standby-log"))
            promoted.enter_context(segstore.serve(promoted_store, port=port))

        addresses = {"primary:9092": server.bootstrap_servers, "standby:9092": f"127.0.0.1:{port}"}
        served = {"segstore serve --store primary-log": "true"}  # by this process, which has it open
        yield Setting(
            {**served, **addresses, "127.0.0.1:9092": "127.0.0.1:0"},
            before={
                "segstore follow standby:9092": serve_promoted,
                "segstore promote primary-log": promoted.close,
            },
        )


@contextmanager
def old_messages(directory: Path) -> Iterator[Setting]:
    log_dir = directory / "broker-logs"
    shutil.copytree(GOLDEN / "old" / "clean" / "mixed-0", log_dir / "orders-0", copy_function=shutil.copyfile)
    yield Setting({"open(LOG_DIR,": f"open({str(log_dir)!r},", "--store LOG_DIR": f"--store {log_dir}"})


HERE: Mapping[str, Callable[[Path], AbstractContextManager[Setting]]] = {
    "README.md": readme,
    "docs/archive.md": archived,
    "docs/clients.md": clients,
    "docs/engine.md": nothing,
    "docs/index.md": nothing,
    "docs/mirror.md": mirror,
    "docs/old-messages.md": old_messages,
    "docs/operate.md": operate,
    "docs/questions.md": nothing,
    "docs/queues.md": nothing,
    "docs/replication.md": replication,
    "docs/serve.md": serve,
    "docs/staging.md": nothing,
    "docs/standby.md": standby,
    "docs/tables.md": nothing,
    "docs/transfer.md": nothing,
    "docs/zero-copy.md": nothing,
}
AGAIN = ("docs/clients.md", "docs/engine.md")
"""Pages whose programs are to run again in the same directory."""


@pytest.mark.parametrize("page", HERE)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    with HERE[page](tmp_path) as setting:
        setting = setting._replace(left_out=left_out(page))
        pages.walk(REPOSITORY / page, tmp_path, setting)
        if page in AGAIN:
            pages.walk(REPOSITORY / page, tmp_path, setting._replace(compares=False))
    stores = [path.parent.parent for path in tmp_path.rglob(".segstore/format")]
    assert {str(store): segstore.check(store) for store in stores} == {str(store): [] for store in stores}


def test_every_page_with_code_is_run() -> None:
    with_code = {str(page.relative_to(REPOSITORY)) for page in guides() if "```" in text_of(page)}
    assert with_code == {*HERE, *ELSEWHERE}
    assert not set(HERE) & set(ELSEWHERE)
    for page, test in ELSEWHERE.items():
        text = (REPOSITORY / "tests" / test).read_text(encoding="utf-8")
        assert Path(page).stem in text or Path(page).parent.name in text, page


def test_code_fits_beside_the_columns_of_the_site() -> None:
    """A screen of 1280 pixels has 92 characters of code (docs/site.css)."""
    long = [
        f"{page}: {line}"
        for page in (*HERE, *ELSEWHERE)
        for block in pages.blocks(REPOSITORY / page)
        for line in block.text.splitlines()
        if len(line) > 92
    ]
    assert long == []


def test_every_block_is_seen_and_what_is_left_out_is_there() -> None:
    for page in (*HERE, *ELSEWHERE):
        text = (REPOSITORY / page).read_text(encoding="utf-8")
        assert 2 * len(pages.blocks(REPOSITORY / page)) == sum("```" in line for line in text.splitlines())
    for page, reasons in LEFT_OUT.items():
        assert len(left_out(page)) == len(reasons), page
