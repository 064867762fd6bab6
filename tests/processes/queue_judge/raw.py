"""A consumer of raw requests: it renews, acquires in both modes, and acknowledges within fetches and apart:
see `worker`.
"""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from oracle import decode_batches
from queue_events import GAP, RENEW, Got, Part, Told
from wire_client import WireClient

from segstore.protocol.codec import structs
from segstore.protocol.error_codes import Code

from .plan import GROUP, Plan
from .told import Telling, now, pause, verdict

_CONTROL = 0x20
_TIMEOUT = 5.0
_AGAIN = (Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH, Code.GROUP_ID_NOT_FOUND)
Acks = dict[tuple[bytes, int], dict[int, int]]
"""By topic id and partition, the type for each offset."""


class SessionLost(Exception):
    """The share session, or the connection, has ended."""


class RawConsumer:
    """Lives of members until it is told to end. A life has one connection, and one share session."""

    def __init__(self, address: str, plan: Plan, tell: Telling, name: str) -> None:
        self.host, port = address.split(":")
        self.port, self.plan, self.tell, self.name = int(port), plan, tell, name
        self.rng = random.Random(f"{plan.seed} {name}")
        self.life = 0

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.life += 1
            try:
                with WireClient(self.host, self.port) as wire:
                    wire.socket.settimeout(_TIMEOUT)
                    _Life(self, wire).live(is_over)
            except (OSError, SessionLost) as error:
                self.tell(Told(f"{self.name}.{self.life}", ("", 0), [], repr(error), now()))
                time.sleep(0.05)


class _Life:
    """A member with one connection."""

    def __init__(self, consumer: RawConsumer, wire: WireClient) -> None:
        self.plan, self.tell, self.rng = consumer.plan, consumer.tell, consumer.rng
        self.who, self.wire = f"{consumer.name}.{consumer.life}", wire
        self.member = str(uuid.UUID(int=self.rng.getrandbits(128)))
        self.epoch, self.session = 0, 0
        self.beat_at, self.mode = 0.0, self.rng.randrange(2)
        self.most = self.rng.choice((1, 10, 100))
        self.names: dict[bytes, str] = {}
        self.assigned: set[tuple[bytes, int]] = set()
        self.in_session: set[tuple[bytes, int]] = set()
        self.values: dict[tuple[bytes, int], dict[int, tuple[int, str]]] = defaultdict(dict)

    def live(self, is_over: Callable[[], bool]) -> None:
        rounds = self.rng.randrange(10, 80)
        acks: Acks = {}
        while not is_over() and rounds > 0:
            rounds -= 1
            self._beat()
            if not acks or self.rng.random() < 0.6:
                found = self._fetch(acks)
                pause(self.rng, self.plan.lock_ms)
                acks = self._verdicts(found)
            else:
                acks = self._acknowledge(acks)
        if self.rng.random() < 0.7:
            self._leave(acks)

    # --- the group -----------------------------------------------------------------------------

    def _beat(self) -> None:
        if time.monotonic() < self.beat_at:
            return
        wanted = list(self.plan.topics) if self.epoch == 0 else None
        body = self._heartbeat(self.epoch, wanted)
        if body.error_code in _AGAIN:
            self.epoch = 0
            body = self._heartbeat(0, list(self.plan.topics))
        if body.error_code:
            raise SessionLost(f"heartbeat: {body.error_code} {body.error_message}")
        self.epoch = body.member_epoch
        self.beat_at = time.monotonic() + body.heartbeat_interval_ms / 1000
        if body.assignment is not None:
            self.assigned = {
                (bytes(each.topic_id), number)
                for each in body.assignment.topic_partitions
                for number in each.partitions
            }
        if any(topic not in self.names for topic, _ in self.assigned):
            found = self.wire.ask("Metadata", 12, topics=None).topics
            self.names = {bytes(each.topic_id): each.name for each in found}

    def _heartbeat(self, epoch: int, wanted: list[str] | None) -> Any:
        return self.wire.ask(
            "ShareGroupHeartbeat",
            1,
            group_id=GROUP,
            member_id=self.member,
            member_epoch=epoch,
            subscribed_topic_names=wanted,
        )

    def _leave(self, acks: Acks) -> None:
        """End the session, with what was not told yet, and leave the group."""
        if self.session:
            self.session = -1
            self._acknowledge({key: some for key, some in acks.items() if RENEW not in some.values()})
        self._heartbeat(-1, None)

    # --- records -------------------------------------------------------------------------------

    def _fetch(self, acks: Acks) -> dict[tuple[bytes, int], list[int]]:
        """Fetch, and send acknowledgements; return what is to be acknowledged anew, or is new."""
        renews = any(RENEW in some.values() for some in acks.values())
        terms = {"max_wait_ms": 150, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": self.most}
        if renews:
            terms = dict.fromkeys(terms, 0)
        kind = structs("ShareFetchRequest")
        new = self.assigned if self.session == 0 else self.assigned - self.in_session
        if self.session == 0:
            acks = {}  # not with a new session
        rows: dict[bytes, list[Any]] = defaultdict(list)
        for key in sorted(new | acks.keys()):
            batches = _batches(kind, acks.get(key, {}), self.rng)
            rows[key[0]].append(kind.FetchPartition(partition_index=key[1], acknowledgement_batches=batches))
        gone = (self.in_session | acks.keys()) - self.assigned
        forgotten: dict[bytes, list[int]] = defaultdict(list)
        for topic, number in sorted(gone):
            forgotten[topic].append(number)
        body = self._asked(
            "ShareFetch",
            topics=[kind.FetchTopic(topic_id=topic, partitions=some) for topic, some in rows.items()],
            forgotten_topics_data=[
                kind.ForgottenTopic(topic_id=topic, partitions=some) for topic, some in forgotten.items()
            ],
            is_renew_ack=renews,
            share_acquire_mode=self.mode,
            batch_size=self.most,
            **terms,
        )
        self.in_session = set(self.assigned)
        found = self._told(acks, body, "acknowledge_error_code")
        for topic in body.responses:
            for row in topic.partitions:
                if row.acquired_records:
                    found.setdefault((bytes(topic.topic_id), row.partition_index), []).extend(
                        self._take((bytes(topic.topic_id), row.partition_index), row)
                    )
        return found

    def _asked(self, api: str, **fields: Any) -> Any:
        body = self.wire.ask(
            api, 2, group_id=GROUP, member_id=self.member, share_session_epoch=self.session, **fields
        )
        if body.error_code:
            raise SessionLost(f"{api}: {body.error_code} {body.error_message}")
        self.session += self.session >= 0
        return body

    def _take(self, key: tuple[bytes, int], row: Any) -> list[int]:
        """Note the acquired records of an answer; return their offsets, those without a record too. Runs must
        rise, and lie within the batches that were sent.
        """
        batches = decode_batches(bytes(row.records))
        ends = [end for each in row.acquired_records for end in (each.first_offset, each.last_offset)]
        assert ends == sorted(ends), ends
        assert batches[0].base_offset <= ends[0], (batches[0], ends)
        assert ends[-1] <= batches[-1].base_offset + batches[-1].last_offset_delta, (batches[-1], ends)
        counts = {
            offset: each.delivery_count
            for each in row.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        held = self.values[key]
        for offset in counts:
            held.pop(offset, None)
        for batch in batches:
            if batch.attributes & _CONTROL:
                continue
            for record in batch.records:
                if record.offset in counts and record.value is not None:
                    held[record.offset] = counts[record.offset], record.value.decode()
        rows = [(offset, *held[offset]) for offset in counts if offset in held]
        if rows:
            self.tell(Got(self.who, self._part(key), rows, now()))
        return list(counts)

    def _part(self, key: tuple[bytes, int]) -> Part:
        return self.names[key[0]], key[1]

    # --- acknowledgements ------------------------------------------------------------------------

    def _verdicts(self, found: Mapping[tuple[bytes, int], list[int]]) -> Acks:
        """Draw what becomes of records; offsets without one are gaps."""
        return {
            key: {
                offset: verdict(self.rng, held[offset][1], may_renew=True) if offset in held else GAP
                for offset in offsets
            }
            for key, offsets in found.items()
            if offsets
            for held in (self.values[key],)
        }

    def _acknowledge(self, acks: Acks) -> Acks:
        """Send acknowledgements apart from fetches; return those of renewed records, drawn anew."""
        kind = structs("ShareAcknowledgeRequest")
        rows: dict[bytes, list[Any]] = defaultdict(list)
        for (topic, number), some in sorted(acks.items()):
            batches = _batches(kind, some, self.rng)
            rows[topic].append(
                kind.AcknowledgePartition(partition_index=number, acknowledgement_batches=batches)
            )
        body = self._asked(
            "ShareAcknowledge",
            topics=[kind.AcknowledgeTopic(topic_id=topic, partitions=some) for topic, some in rows.items()],
            is_renew_ack=any(RENEW in some.values() for some in acks.values()),
        )
        return self._verdicts(self._told(acks, body, "error_code"))

    def _told(self, acks: Acks, body: Any, field: str) -> dict[tuple[bytes, int], list[int]]:
        """Tell how acknowledgements went; return the offsets that were renewed."""
        codes = {
            (bytes(topic.topic_id), row.partition_index): getattr(row, field)
            for topic in body.responses
            for row in topic.partitions
        }
        renewed = {}
        for key, some in acks.items():
            code = codes[key]
            self.tell(Told(self.who, self._part(key), sorted(some), str(code) if code else "", now()))
            if not code:
                renewed[key] = sorted(offset for offset, kind in some.items() if kind == RENEW)
        return {key: offsets for key, offsets in renewed.items() if offsets}


def _batches(kind: Any, types: Mapping[int, int], rng: random.Random) -> list[Any]:
    """Return acknowledgement batches of offsets, with a type for each offset or one for all."""
    found: list[list[int]] = []
    for offset in sorted(types):
        if found and found[-1][-1] == offset - 1 and rng.random() < 0.95:
            found[-1].append(offset)
        else:
            found.append([offset])
    batches = []
    for offsets in found:
        drawn = [types[offset] for offset in offsets]
        if len(set(drawn)) == 1 and rng.random() < 0.7:
            drawn = drawn[:1]
        batches.append(
            kind.AcknowledgementBatch(
                first_offset=offsets[0], last_offset=offsets[-1], acknowledge_types=drawn
            )
        )
    return batches
