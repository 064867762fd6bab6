"""What becomes of a batch whatever its keys say: the rules of Kafka's Cleaner.cleanInto. Nothing on disk.

Threads: the cleaning thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from segstore._native import lib
from segstore.config import TopicConfig
from segstore.records import CODECS, CONTROL_FLAG
from segstore.records.header import CODEC_MASK
from segstore.storage.cleaner.retain import Decided

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segstore.storage.segment.segment import Segment

LastRecords = Mapping[int, tuple[int, int]]
"""By producer id: the last offset of its last batch of data, -1 for none, and its epoch."""


class Policy:
    """`until` is where the stretch that is cleaned ends: its last batch stays, to say so."""

    def __init__(self, config: TopicConfig, decided: Decided, last_records: LastRecords, until: int) -> None:
        self._decided, self._last_records, self._until = decided, last_records, until
        self._last_offsets = np.array([last for last, _ in last_records.values()], np.int64)
        self.retained: NDArray[np.int64] = np.unique(np.append(self._last_offsets, until - 1))
        """Last offsets of batches without transaction that stay without records too; they rise."""
        self._codec = None if config.compression_type == "producer" else _code(config.compression_type)
        self.level = self._level(config)

    @staticmethod
    def _level(config: TopicConfig) -> dict[int, int | None]:
        """The level that each codec compresses at."""
        return {code: getattr(config, f"compression_{name}_level", None) for code, name in enumerate(CODECS)}

    @property
    def recodes(self) -> bool:
        """Whether batches get the topic's codec, and may become larger by that."""
        return self._codec is not None

    @property
    def compresses(self) -> bool:
        """Whether batches that are plain become something else."""
        return bool(self._codec)

    def policies(self, segment: Segment, batches: NDArray[np.void]) -> NDArray[np.uint8]:
        """Flags of seg_compact for each batch."""
        policies = self._decided.policies(segment, batches)
        stays = self._last_of_producer(batches) | (batches["last_offset"] + 1 == self._until)
        policies[stays] |= lib.SEG_RETAIN_EMPTY
        return policies

    def codecs(self, batches: NDArray[np.void]) -> NDArray[np.uint8]:
        """The codec that each batch gets if it is written anew, or because it has another one."""
        attributes = batches["attributes"]
        codecs = (attributes & CODEC_MASK).astype(np.uint8)
        if self._codec is not None:
            codecs[(attributes & CONTROL_FLAG == 0) & (batches["count"] > 0)] = self._codec
        return codecs

    def _last_of_producer(self, batches: NDArray[np.void]) -> NDArray[np.bool_]:
        """Batches that hold an active producer's last sequence, or its epoch."""
        found: NDArray[np.bool_] = np.zeros(len(batches), bool)
        if not self._last_records:
            return found
        ids = batches["producer_id"]
        likely = np.isin(batches["last_offset"], self._last_offsets)
        likely |= batches["attributes"] & CONTROL_FLAG != 0
        for i in (likely & (ids >= 0)).nonzero()[0].tolist():
            last, epoch = self._last_records.get(int(ids[i]), (-2, -1))
            if last >= 0:
                found[i] = batches["last_offset"][i] == last
            elif last == -1 and batches["attributes"][i] & CONTROL_FLAG:
                found[i] = batches["producer_epoch"][i] == epoch
        return found


def _code(compression_type: str) -> int:
    return 0 if compression_type == "uncompressed" else CODECS.index(compression_type)
