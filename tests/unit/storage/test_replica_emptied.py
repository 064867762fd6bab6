"""A replica all of whose records were deleted has no leader epoch, which is no damage."""

from __future__ import annotations

from pathlib import Path

from replicated_writers import open_writer, topic
from stores import raw_batches

import segstore

LED = raw_batches(range(60))


def test_r5_an_emptied_replica_is_sound(tmp_path: Path) -> None:
    """Its segment still has the batches. `check`, and each open, said that its epochs were lost."""
    writer = open_writer(tmp_path)
    writer.topic_admin.make(topic())
    replica = writer.partitions.replica("t", 0)
    replica.append_as_follower(LED)
    replica.set_high_watermark(60)
    replica.set_start_offset(60)
    replica.truncate_to(60)
    writer.close(broker_epoch=1)
    assert [str(each) for each in segstore.check(tmp_path)] == []
    writer = open_writer(tmp_path)
    replica = writer.partitions.replica("t", 0)
    assert (replica.start_offset, replica.log_end_offset, replica.epochs) == (60, 60, ())
    assert writer.context.mended == []
    writer.close(broker_epoch=1)
