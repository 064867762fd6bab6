"""The admin client: topics, settings, groups and records by kafka-python's names."""

from segstore.client.admin.client import AdminClient, KafkaAdminClient
from segstore.client.admin.requests import ConfigResource, ConfigResourceType, NewPartitions, NewTopic

__all__ = [
    "AdminClient",
    "ConfigResource",
    "ConfigResourceType",
    "KafkaAdminClient",
    "NewPartitions",
    "NewTopic",
]
