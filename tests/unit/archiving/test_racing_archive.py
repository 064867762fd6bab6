"""An archive beside writers, sweeps, deletions and changes of settings: what is told is there."""

from __future__ import annotations

import random
import threading

import pytest
from archive_oracle import check_archive, partition_logs

import segstore
from segstore.archiving.chain import read_state
from segstore.archiving.remote import RemoteFiles

WAIT_MS = 60_000
CONFIGS = {
    "deleted": {"segment.bytes": 2048},
    "compacted": {"segment.bytes": 2048, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0},
    "rolling": {"segment.bytes": 1024},
}


def disturb(store, seed, over, failed):
    """Append to all topics, and do at times what an administrator does, until it is over."""
    drawn = random.Random(seed)
    try:
        while not over.is_set():
            name = drawn.choice([*CONFIGS, "again"])
            store.ensure_topic(name, None, CONFIGS.get(name))
            log = store.partition(name, 0)
            for _ in range(drawn.randrange(1, 30)):
                log.append(value=drawn.randbytes(drawn.randrange(1, 300)), key=b"%d" % drawn.randrange(5))
            what = drawn.randrange(12)
            if what == 0:
                log.delete_records(drawn.randrange(log.start_offset, log.high_watermark + 1))
            if what < 3:
                store.sweep()
            if what == 3 and name == "again":
                store.delete_topic(name)
            if what == 4:
                store.alter_topic(name, {"retention.ms": drawn.randrange(10**9, 10**10)})
    except BaseException as error:
        failed.append(error)
        raise


@pytest.mark.parametrize("seed", range(4))
def test_what_is_told_is_there(tmp_path, seed):
    print(f"seed {seed}")
    base = RemoteFiles(str(tmp_path / "archive"))
    over, failed = threading.Event(), []
    with segstore.open(tmp_path / "store") as store:
        thread = threading.Thread(target=disturb, args=(store, seed, over, failed))
        with segstore.archive(store, tmp_path / "archive", interval_ms=1) as archive:
            thread.start()
            try:
                for _ in range(60):
                    log = store.ensure_topic("told") and store.partition("told", 0)
                    end = log.append(value=b"told") + 1
                    assert archive.wait_archived(WAIT_MS), archive.error
                    state = read_state(base)
                    topic = state.topic("told")
                    found = next(p for k, p in state.partitions.items() if k[1] == topic.topic_id)
                    assert found.end >= end
                    assert partition_logs(base, found)[0].count(b"told") >= end
            finally:
                over.set()
                thread.join()
            assert not failed
            assert archive.wait_archived(WAIT_MS)
            assert archive.wait_archived(WAIT_MS)
            assert archive.error is None
            assert archive.counts.ways == 0
        with segstore.archive(store, tmp_path / "archive", interval_ms=1) as archive:
            assert archive.wait_archived(WAIT_MS)
            assert archive.counts.ways == 0
    check_current(base, tmp_path / "store")


def check_current(base, store):
    """Check that the archive has the store's logs; of segments that compaction has just replaced it may have
    those before, so the store is archived until nothing changes.
    """
    from archivers import archiver_of, settled

    with archiver_of(store, base) as archiver:
        settled(archiver)
        settled(archiver)
    check_archive(base, store)
