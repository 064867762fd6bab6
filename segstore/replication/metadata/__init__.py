"""The metadata of a replicated store: Kafka's metadata records, the log of these records in each voter, and
the metadata image: the brokers, topics, partitions and settings that the records describe.
"""
