"""The admin client: topics, settings, groups and records, with kafka-python's names."""

from segstore.client.admin.client import AdminClient, KafkaAdminClient
from segstore.client.admin.requests import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from segstore.client.admin.share_groups import SharePartitionOffsetInfo

__all__ = [
    "AdminClient",
    "ConfigResource",
    "ConfigResourceType",
    "KafkaAdminClient",
    "NewPartitions",
    "NewTopic",
    "SharePartitionOffsetInfo",
]
