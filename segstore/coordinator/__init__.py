"""The coordinators of a Kafka broker, as parts of a store: group membership, committed offsets, transactions,
share groups and quotas.
"""
