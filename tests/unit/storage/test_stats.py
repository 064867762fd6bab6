"""What an operator sees: stats, metrics, `segstore stats` and `segstore sweep`."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from cli import json_lines, ok, run
from partitions import Partition
from prometheus_client.parser import text_string_to_metric_families
from stores import START_MS, Clock, logs, value_of

import segstore
from segstore.errors import SegstoreError, StoreClosedError


@pytest.fixture
def store(store_dir: Path) -> Any:
    """Topic "t" of two partitions with 23 and 0 records, and a compacted one."""
    with segstore.open(store_dir, clock=Clock(), config={"log.cleaner.threads": 0}) as store:
        store.create_topic("t", 2, {"segment.bytes": 1000, "file.delete.delay.ms": 0})
        store.create_topic("c", config={"cleanup.policy": "compact", "segment.bytes": 1000})
        for i in range(23):
            store.partition("t").append(value_of(i, 100))
            store.partition("c").append(value_of(i, 100), key=b"k%d" % i)
        yield store


def test_stats_of_every_partition(store: segstore.Store, store_dir: Path) -> None:
    store.partition("t").delete_records(11)
    found = {(s.topic, s.partition): s for s in store.stats()}
    assert list(found) == [("c", 0), ("t", 0), ("t", 1)]
    first = found["t", 0]
    sizes = [log.stat().st_size for log in logs(store_dir)]
    assert (first.segments, first.bytes) == (len(sizes), sum(sizes))
    assert (first.records, first.start_offset, first.end_offset) == (12, 11, 23)
    assert (first.dirty_ratio, first.swept_ms, first.error) == (None, -1, None)
    assert found["t", 1][2:8] == (1, 0, found["t", 1].index_bytes, 0, 0, 0)
    assert found["c", 0].dirty_ratio == 1.0


def test_records_count_only_behind_the_start_within_a_batch(store: segstore.Store) -> None:
    log = store.partition("t", 1)
    log.append_batch([b"x"] * 10)
    log.delete_records(4)
    assert store.stats()[-1].records == len(log.read(4)) == 6


@pytest.mark.kind("costly unit tests")
def test_records_of_a_broker_s_partition(broker_partition: Partition) -> None:
    with segstore.open(broker_partition.root, mode="r") as store:
        found = {(s.topic, s.partition): s for s in store.stats()}
        stats = found[broker_partition.topic, broker_partition.index]
    assert stats.records == len(broker_partition.expected())


def test_a_partition_that_cannot_be_read_says_so_and_the_others_are_there(
    store: segstore.Store, store_dir: Path
) -> None:
    """Settings that are damaged hide no partition any more; a link in the place of a directory does."""
    store.close()
    away = (store_dir / "t-0").rename(store_dir.parent / "away")
    (store_dir / "t-0").symlink_to(away)
    with segstore.open(store_dir, mode="r") as reader:
        found = {(s.topic, s.partition): s for s in reader.stats()}
        assert "A symbolic link in a directory's place" in str(found["t", 0].error)
        assert found["c", 0].records == 23
    (store_dir / "t-0").unlink()
    away.rename(store_dir / "t-0")


def test_sweeps_show(store: segstore.Store) -> None:
    store.alter_topic("t", {"retention.bytes": 1000})
    freed = store.sweep()[0].deleted_bytes
    stats = {(s.topic, s.partition): s for s in store.stats()}["t", 0]
    assert (stats.swept_ms, stats.deleted_bytes) == (START_MS, freed)
    assert store.metrics()["t-0"]["deleted-bytes-total"] == freed


def test_what_the_cleaner_takes_for_another_log_s_is_dirty(store_dir: Path) -> None:
    """A checkpoint behind the log's end says nothing of it: the ratio is as the cleaner sees it."""
    with segstore.open(store_dir, config={"log.cleaner.threads": 0}) as store:
        store.create_topic("t", config={"cleanup.policy": "compact", "segment.bytes": 300})
        for i in range(20):
            store.partition("t").append(b"x" * 50, key=b"%d" % i)
    (store_dir / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 5000\n")
    with segstore.open(store_dir, "r") as store:
        assert store.stats()[0].dirty_ratio == 1.0
    (store_dir / "cleaner-offset-checkpoint").unlink()


def test_metrics_as_a_dict_and_as_prometheus_text_say_the_same(store: segstore.Store) -> None:
    held = store.metrics()
    assert held["t-0"]["LogEndOffset"] == 23
    assert held["c-0"]["dirty-ratio"] == 1.0
    samples = {
        (sample.name, *(sample.labels.get(label, "") for label in ("topic", "partition"))): sample.value
        for family in text_string_to_metric_families(store.metrics_text())
        for sample in family.samples
    }
    of_the_disk = {name for name, topic, _ in samples if not topic}
    assert of_the_disk == {"segstore_disk_full", "segstore_disk_free_bytes"}
    assert samples["segstore_log_end_offset", "t", "0"] == 23
    assert samples["segstore_log_size_bytes", "c", "0"] == held["c-0"]["Size"]
    assert samples["segstore_partition_failed", "t", "1"] == 0
    assert ("segstore_log_dirty_ratio", "t", "0") not in samples
    # A counter that was made now began long ago: no `_created`.
    assert len({name for name, _, _ in samples} - of_the_disk) == len(held["c-0"])


def test_text_without_the_package_is_refused_by_name(
    store: segstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "prometheus_client":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(SegstoreError, match=r"pip install prometheus-client$"):
        store.metrics_text()


def test_a_closed_store_has_none(store: segstore.Store) -> None:
    store.close()
    for ask in (store.stats, store.metrics, store.metrics_text, store.sweep_states):
        with pytest.raises(StoreClosedError):
            ask()


# --- the commands --------------------------------------------------------------------------------------


def test_the_stats_command_beside_a_live_writer(store: segstore.Store, store_dir: Path) -> None:
    shown = ok("stats", "-s", store_dir).stdout
    assert [line.split()[0] for line in shown.splitlines() if "-0" in line or "-1" in line] == [
        "c-0", "t-0", "t-1",
    ]  # fmt: skip
    assert "100%" in shown
    rows = json_lines(ok("stats", "t", "--json", "-s", store_dir))
    assert [(row["partition"], row["records"]) for row in rows] == [(0, 23), (1, 0)]
    assert "segstore_log_segments" in ok("stats", "--prometheus", "-s", store_dir).stdout


def test_the_stats_command_s_wrong_uses(store: segstore.Store, store_dir: Path) -> None:
    assert run("stats", "t", "--prometheus", "-s", store_dir).exit_code == 2
    wrong = run("stats", "u", "-s", store_dir)
    assert wrong.exit_code == 1
    assert "no topic 'u'; there are: c, t" in wrong.stderr


def test_the_sweep_command(store: segstore.Store, store_dir: Path) -> None:
    busy = run("sweep", "-s", store_dir)
    assert busy.exit_code == 1
    assert "do this there, or stop that process first" in busy.stderr
    store.alter_topic("t", {"retention.bytes": 1000})
    store.close()
    before = len(logs(store_dir))
    (row,) = json_lines(ok("sweep", "--json", "-s", store_dir))
    assert (row["topic"], row["partition"], row["error"]) == ("t", 0, None)
    assert row["deleted_segments"] == before - len(logs(store_dir)) > 0
    assert "nothing to sweep" in ok("sweep", "-s", store_dir).stderr
    missing = run("sweep", "-s", store_dir / "missing")
    assert missing.exit_code == 1
    assert not (store_dir / "missing").exists()


def test_topics_tell_what_could_not_be_swept(store: segstore.Store, store_dir: Path) -> None:
    log = logs(store_dir, "c-0")[0]
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    (failed,) = [done for done in store.sweep() if done.error]
    whole, one = ok("topics", "--store", store_dir), ok("topics", "c", "--store", store_dir)
    assert "not swept: " in whole.stdout
    assert "not swept: " in one.stdout
    told = {
        row["topic"]: row["partitions"][0].get("error")
        for row in json_lines(ok("topics", "--json", "--store", store_dir))
    }
    assert told == {"c": f"not swept: {failed.error}", "t": None}
    data[-1] ^= 1
    log.write_bytes(data)
    assert not any(done.error for done in store.sweep())
    assert "not swept" not in ok("topics", "c", "--store", store_dir).stdout
