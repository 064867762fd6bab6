"""`segstore.archive`: what it tells as archived is in the archive, byte for byte."""

from __future__ import annotations

import os
import re

import pytest
from archive_oracle import check_archive
from places import REPOSITORY
from struck_objects import AFTER, BEFORE, StruckObjects, refused

import segstore
from segstore.archiving.archive import Archive, opened
from segstore.archiving.chain import read_state
from segstore.archiving.remote import RemoteFiles
from segstore.archiving.settings import checked
from segstore.errors import ArchiveFencedError, InvalidArgumentError, InvalidTypeError, StoreClosedError
from segstore.storage.store import store as storage
from segstore.wire.backoff import Backoff

SMALL = {"segment.bytes": 4096}
WAIT_MS = 30_000


def fill(log, count, size=100):
    for number in range(count):
        log.append(value=bytes([number % 256]) * size)


def test_a_store_is_archived_while_it_is_written(tmp_path):
    base = RemoteFiles(str(tmp_path / "archive"))
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("plain", partitions=2)
        store.create_topic("rolling", config=SMALL)
        fill(store.partition("rolling", 0), 200)
        with segstore.archive(store, tmp_path / "archive", interval_ms=1) as archive:
            assert archive.wait_archived(WAIT_MS)
            check_archive(base, tmp_path / "store")
            for number in range(100):
                fill(store.partition("rolling", 0), 1 + number % 7)
                fill(store.partition("plain", number % 2), 1)
                assert archive.wait_archived(WAIT_MS)
                assert archive.total_lag().records == 0
            assert archive.error is None
            check_archive(base, tmp_path / "store")
            assert archive.counts.states > 1  # so that pieces were merged


def test_an_archiver_goes_on_from_what_is_there(tmp_path):
    base = RemoteFiles(str(tmp_path / "archive"))
    with segstore.open(tmp_path / "store") as store:
        log = store.create_topic("t", config=SMALL) and store.partition("t", 0)
        for _ in range(5):
            fill(log, 30)
            with opened(store, tmp_path / "archive", checked()) as archive:
                archive.run_once()
                written = archive.counts.bytes
            check_archive(base, tmp_path / "store")
        assert written < 3 * 4096 + 6000  # what was there before was not uploaded again
        with opened(tmp_path / "store", tmp_path / "archive", checked()) as archive:
            archive.run_once()
            assert archive.counts.commits == 0


def test_the_later_archiver_has_the_archive(tmp_path):
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t")
        with segstore.archive(store, tmp_path / "archive") as first:
            assert first.wait_archived(WAIT_MS)
            with segstore.archive(store, tmp_path / "archive") as second:
                assert second.wait_archived(WAIT_MS)
                with pytest.raises(ArchiveFencedError):
                    first.wait_archived(WAIT_MS)
                assert isinstance(first.error, ArchiveFencedError)
                assert second.error is None


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"interval_ms": 0}, InvalidArgumentError),
        ({"topics": "t"}, InvalidTypeError),
        ({"topics": []}, InvalidArgumentError),
        ({"topics": 5}, InvalidTypeError),
        ({"retention_ms": -2}, InvalidArgumentError),
        ({"uploads": 0}, InvalidArgumentError),
    ],
    ids=str,
)
def test_arguments_are_checked(tmp_path, given, error):
    with segstore.open(tmp_path / "store") as store, pytest.raises(error):
        segstore.archive(store, tmp_path / "archive", **given)


@pytest.mark.parametrize("below", [".", "backup", "missing/backup", "link"])
def test_an_archive_within_its_store_is_refused(tmp_path, below):
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t")
        (tmp_path / "link").symlink_to(tmp_path / "store")
        uri = tmp_path / "link" if below == "link" else tmp_path / "store" / below
        for given in (store, store.path):
            with pytest.raises(InvalidArgumentError, match="it is in the directory of the store"):
                segstore.archive(given, uri)
        assert not {"claims", "backup", "missing"} & {*os.listdir(store.path)}
        with segstore.archive(store, tmp_path / "store-2") as archive:
            assert archive.wait_archived()


def test_metrics_are_beside_those_of_the_store(tmp_path):
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t")
        with segstore.archive(store, tmp_path / "archive", interval_ms=100_000) as archive:
            assert archive.total_lag().records <= 0
            assert archive.wait_archived(WAIT_MS)
            fill(store.partition("t", 0), 3)
            lag = archive.total_lag()
            assert (lag.records, lag.bytes > 300) == (3, True)
            values = {metric[1]: rows[0].value for metric, _, rows in store.all_families() if rows}
            assert values["segstore_archive_lag_records"] == 3
            assert values["segstore_archive_up"] == 1
            assert values["segstore_archive_commits_total"] >= 1
            assert archive.lag()["t", 0] == archive.total_lag()
        assert not [metric for metric, _, _ in store.all_families() if "archive" in metric[1]]


def test_a_replicated_store_is_refused_by_name(tmp_path):
    with (
        segstore.open_replicated([tmp_path / "a", tmp_path / "b", tmp_path / "c"]) as store,
        pytest.raises(InvalidTypeError, match="several directories"),
    ):
        segstore.archive(store, tmp_path / "archive")


def test_a_directory_of_a_replicated_store(tmp_path):
    base = RemoteFiles(str(tmp_path / "archive"))
    with segstore.open_replicated([tmp_path / "a", tmp_path / "b", tmp_path / "c"]) as store:
        store.create_topic("t", replication_factor=3, config=SMALL)
        for _ in range(5):
            fill(store.partition("t", 0), 10)
            with opened(tmp_path / "b", tmp_path / "archive", checked()) as archive:
                archive.run_once()
                assert archive.counts.ways == 0
    with opened(tmp_path / "b", tmp_path / "archive", checked()) as archive:
        archive.run_once()
        assert archive.counts.ways == 0
    state = read_state(base)
    assert state.topic("t") is not None
    found = next(each for key, each in state.partitions.items() if key.topic == "t")
    assert found.end == 50


def test_a_closed_archive(tmp_path):
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t")
        archive = segstore.archive(store, tmp_path / "archive")
        archive.close()
        archive.close()
        with pytest.raises(StoreClosedError):
            archive.wait_archived(WAIT_MS)
        opened(store, tmp_path / "archive", checked()).close()


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_an_archive_goes_on_behind_any_error_of_its_objects(tmp_path, when):
    base = RemoteFiles(str(tmp_path / "archive"))
    with segstore.open(tmp_path / "store") as store:
        store.create_topic("t", config=SMALL)
        objects = StruckObjects(base, 0, when, refused, dead=False)
        held = storage.open(tmp_path / "store", "r")
        archive = Archive(held, objects, checked(None, 1, -1, -1, -1, 0, 2))
        archive._backoff = Backoff(1, 1)
        with archive:
            archive.start()
            for number in range(60):
                fill(store.partition("t", 0), 5)
                objects.at = objects.calls + number % 9
                assert archive.wait_archived(WAIT_MS)
                (found,) = read_state(base).partitions.values()
                assert found.end == 5 + number * 5
            assert archive.counts.errors > 10
            objects.at = -1
            assert archive.wait_archived(WAIT_MS)
            assert len(base.list("claims/")) < 12
        check_archive(base, tmp_path / "store")


def test_metrics_have_the_names_that_the_page_for_operators_has(tmp_path):
    page = (REPOSITORY / "docs" / "operate.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(segstore_archive_\w+)`", page))
    with (
        segstore.open(tmp_path / "store") as store,
        opened(store, tmp_path / "archive", checked()) as archive,
    ):
        known = {metric.prometheus for metric, _, _ in archive.metrics()}
    assert named
    assert named - known == set()
