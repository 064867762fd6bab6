"""Templates of Fetch's answers that have one partition, without an error, or no partition.

Threads: no state.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.protocol.codec import structs
from segstore.protocol.fetch_epochs import NO_SESSION
from segstore.protocol.template import MessageField, MessageTemplate, answer_template

_Response = structs("FetchResponse")
_FLEXIBLE_SINCE, _START_SINCE = 12, 5
"""The first version whose lengths are varints, and the first whose answers have the log start offset."""


class Brought(NamedTuple):
    """The fields of an answer's one partition; `records` is a part of the answer, not a copy."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview


def partition_answer(
    version: int,
    topic: str,
    topic_id: bytes,
    partition: int,
    *,
    committed: bool,
    session_id: int = NO_SESSION,
) -> MessageTemplate:
    """Return the template of answers for this partition: its high watermark, last stable offset, log start
    offset (since version 5) and records. `topic_id` counts since version 13, and `topic` before. With
    `committed` the answers have an empty list of aborted transactions.
    """
    data = _Response.PartitionData(
        partition_index=partition, aborted_transactions=[] if committed else None, records=b""
    )
    told = _Response.FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=[data])
    body = _Response(session_id=session_id, responses=[told])
    names = ["high_watermark", "last_stable_offset", "log_start_offset"][: 2 + (version >= _START_SINCE)]
    fields = [MessageField(data, name) for name in names]
    return answer_template(version >= _FLEXIBLE_SINCE, version, body, fields, MessageField(data, "records"))


def empty_answer(version: int, session_id: int) -> MessageTemplate:
    """Return the template of answers in a session of which no partition has changed."""
    return answer_template(version >= _FLEXIBLE_SINCE, version, _Response(session_id=session_id))
