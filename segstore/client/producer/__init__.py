"""The producer: a pipeline with the stages of Kafka's producer. The module `producer.producer` lists the
stages.
"""

from __future__ import annotations

from segstore.client.producer.future import FutureRecordMetadata
from segstore.client.producer.producer import Producer
from segstore.client.producer.record import ProducerRecord, RecordMetadata

__all__ = ["FutureRecordMetadata", "Producer", "ProducerRecord", "RecordMetadata"]
