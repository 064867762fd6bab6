"""The templates (`MessageTemplate`) of two kinds of Fetch answers: answers with one partition and no error,
and answers without partitions.

Threads: no state.
"""

from __future__ import annotations

from typing import NamedTuple

from segstore.protocol.codec import structs
from segstore.protocol.fetch_epochs import NO_SESSION
from segstore.protocol.template import MessageField, MessageTemplate, answer_template

_Response = structs("FetchResponse")
_FLEXIBLE_SINCE, _START_SINCE = 12, 5
"""The first versions with varint lengths, and with the log start offset in answers."""


class Brought(NamedTuple):
    """The values of the partition in an answer. `records` is a view of the answer's bytes, not a copy."""

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
    """Return the template of answers that have only this partition. Besides the correlation id, these answers
    differ in the partition's high watermark, last stable offset, log start offset (since version 5) and
    records.

    `topic_id` is used since version 13, `topic` before. If `committed`, the list of aborted transactions is
    empty; if not, the list is null.
    """
    data = _Response.PartitionData(
        partition_index=partition, aborted_transactions=[] if committed else None, records=b""
    )
    fetched = _Response.FetchableTopicResponse(topic=topic, topic_id=topic_id, partitions=[data])
    body = _Response(session_id=session_id, responses=[fetched])
    names = ["high_watermark", "last_stable_offset", "log_start_offset"][: 2 + (version >= _START_SINCE)]
    fields = [MessageField(data, name) for name in names]
    return answer_template(version >= _FLEXIBLE_SINCE, version, body, fields, MessageField(data, "records"))


def empty_answer(version: int, session_id: int) -> MessageTemplate:
    """Return the template of answers without partitions. An answer without partitions says that
    nothing has changed in the session.
    """
    return answer_template(version >= _FLEXIBLE_SINCE, version, _Response(session_id=session_id))
