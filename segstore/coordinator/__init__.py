"""The broker's half of Kafka, without a broker: group membership, committed offsets, transactions and
quotas.
"""
